// Package main runs a Go client: `clients franz|sarama name=value...`.
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var (
	words  = map[string]string{}
	record *os.File
	ended  = make(chan os.Signal, 1)
)

func main() {
	for _, word := range os.Args[1:] {
		name, value, _ := strings.Cut(word, "=")
		words[name] = value
	}
	var err error
	record, err = os.OpenFile(words["record"], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(err)
	signal.Notify(ended, syscall.SIGTERM)
	map[string]func(){"franz": runFranz, "sarama": runSarama}[words["mode"]]()
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func milliseconds(name string) time.Duration {
	number, err := strconv.Atoi(words[name])
	must(err)
	return time.Duration(number) * time.Millisecond
}

// handle writes a message's line, then pauses, or less where the pause is cut short.
func handle(partition int32, offset int64, cut <-chan struct{}) {
	_, err := fmt.Fprintf(record, "%d %d\n", partition, offset)
	must(err)
	select {
	case <-cut:
	case <-time.After(milliseconds("delay_ms")):
	}
}
