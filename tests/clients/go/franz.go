package main

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// runFranz commits by itself what the poll before returned; a job commits once, at its end.
func runFranz() {
	job := words["once"] == "1"
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(words["bootstrap"], ",")...),
		kgo.ConsumerGroup(words["group"]),
		kgo.ConsumeTopics(words["topic"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitInterval(milliseconds("commit_ms")),
	}
	if job {
		options = append(options, kgo.DisableAutoCommit())
	}
	client, err := kgo.NewClient(options...)
	must(err)
	running, cancel := context.WithCancel(context.Background())
	go func() { <-ended; cancel() }()

	left := map[int32]int64{}
	if job {
		left = findUnread(running, kadm.NewClient(client))
	}
	for running.Err() == nil && !(job && len(left) == 0) {
		// Few at a time: what a poll returned is handled to its end, also when it is to stop.
		fetches := client.PollRecords(running, 100)
		fetches.EachRecord(func(message *kgo.Record) {
			handle(message.Partition, message.Offset, running.Done())
			if message.Offset+1 >= left[message.Partition] {
				delete(left, message.Partition)
			}
		})
	}
	must(client.CommitUncommittedOffsets(context.Background()))
	client.Close()
}

// findUnread has the ends of the partitions that hold what the group has not read.
func findUnread(running context.Context, admin *kadm.Client) map[int32]int64 {
	topic := words["topic"]
	starts, err := admin.ListStartOffsets(running, topic)
	must(err)
	ends, err := admin.ListEndOffsets(running, topic)
	must(err)
	committed, err := admin.FetchOffsetsForTopics(running, words["group"], topic)
	must(err)
	left := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, end.Partition)
		from := start.Offset
		if at, found := committed.Lookup(topic, end.Partition); found {
			from = max(from, at.At)
		}
		if from < end.Offset {
			left[end.Partition] = end.Offset
		}
	})
	return left
}
