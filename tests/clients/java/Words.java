import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/** What every program is told, as `name=value` words, and the record that it writes. */
final class Words {
    static volatile boolean ending;
    private static final Map<String, String> WORDS = new HashMap<>();
    private static FileChannel record;

    private Words() {}

    static void read(String[] words) throws Exception {
        for (String word : words) {
            String[] pair = word.split("=", 2);
            WORDS.put(pair[0], pair[1]);
        }
        record = FileChannel.open(
            Path.of(get("record")), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    static String get(String name) {
        return WORDS.get(name);
    }

    static long number(String name) {
        return Long.parseLong(get(name));
    }

    static boolean is(String name) {
        return "1".equals(get(name));
    }

    /** Settings of a client: the broker, the group, and whatever the words `set.NAME` are. */
    static Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", get("bootstrap"));
        settings.put("group.id", get("group"));
        settings.put("auto.offset.reset", "earliest");
        WORDS.forEach((name, value) -> {
            if (name.startsWith("set.")) {
                settings.put(name.substring(4), value);
            }
        });
        return settings;
    }

    static Map<String, Object> configs() {
        Map<String, Object> configs = new HashMap<>();
        settings().forEach((name, value) -> configs.put((String) name, value));
        return configs;
    }

    /** A line; it is in the file when this returns. */
    static void note(int partition, long offset, String... more) {
        StringBuilder line = new StringBuilder().append(partition).append(' ').append(offset);
        for (String word : more) {
            line.append(' ').append(word);
        }
        try {
            record.write(ByteBuffer.wrap(line.append('\n').toString().getBytes()));
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A message was handled: a line, then the pause. */
    static void handle(int partition, long offset, String... more) {
        note(partition, offset, more);
        pause();
    }

    /** As long as a message takes; cut short once the program is to end. */
    static void pause() {
        long until = System.nanoTime() + number("delay_ms") * 1_000_000;
        while (!ending && System.nanoTime() < until) {
            rest(Math.min(50, Math.max(1, (until - System.nanoTime()) / 1_000_000)));
        }
    }

    /** A handler fails for good at a value that begins so. */
    static void refusePoison(Object value) {
        if (String.valueOf(value).startsWith("poison")) {
            throw new IllegalArgumentException("poison");
        }
    }

    static void awaitEnd() {
        hearEnd();
        while (!ending) {
            rest(50);
        }
    }

    /** At SIGTERM `ending` is set, and the process waits until this thread has ended all. */
    static void hearEnd() {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ending = true;
            try {
                main.join(60_000);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
    }

    private static void rest(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            ending = true;
        }
    }
}
