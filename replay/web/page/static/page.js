// Looks again by itself and keeps the place; copies commands. Without scripts the page reloads.
"use strict";
(() => {
  let seconds = Number(document.body.dataset.refresh) || 30;
  const notice = document.querySelector(".lost-contact");

  async function copy(button, text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without TLS there is no clipboard: the text is chosen, and one key copies it.
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "copied" : "press Ctrl-C";
      return;
    }
    button.textContent = "copied";
  }

  function addButtons() {
    for (const place of document.querySelectorAll(".cmd")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "copy";
      button.setAttribute("aria-label", "copy the command");
      button.addEventListener("click", async () => {
        await copy(button, place.firstElementChild.textContent);
        setTimeout(() => (button.textContent = "copy"), 2000);
      });
      place.append(button);
    }
  }

  async function refresh() {
    if (document.hidden || !getSelection().isCollapsed) return;
    // Somebody is choosing.
    if (document.activeElement.closest("form")) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      // The links of a page are relative to its own address.
      if (answer.redirected) return location.replace(answer.url);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main");
      if (!fresh) throw new Error("no page");
      for (const open of document.querySelectorAll("main details[open]")) {
        if (!open.id) continue;
        const same = fresh.querySelector(`details#${open.id}`);
        if (same) same.open = true;
      }
      document.querySelector("main").replaceWith(document.adoptNode(fresh));
      document.title = page.title;
      // Sooner while something runs on it.
      seconds = Number(page.body.dataset.refresh) || seconds;
      notice.hidden = true;
      addButtons();
    } catch {
      notice.hidden = false;
    }
  }

  addButtons();
  (async function again() {
    await new Promise((wake) => setTimeout(wake, seconds * 1000));
    await refresh();
    again();
  })();
  document.addEventListener("visibilitychange", refresh);
})();
