package main

import (
	"context"
	"errors"
	"strings"

	"github.com/IBM/sarama"
)

type marking struct{}

func (marking) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (marking) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (marking) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			handle(message.Partition, message.Offset, session.Context().Done())
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

// runSarama marks what it handled; the library commits the marks.
func runSarama() {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = milliseconds("commit_ms")
	group, err := sarama.NewConsumerGroup(strings.Split(words["bootstrap"], ","), words["group"], config)
	must(err)
	running, cancel := context.WithCancel(context.Background())
	go func() { <-ended; cancel() }()
	for running.Err() == nil {
		err := group.Consume(running, []string{words["topic"]}, marking{})
		if err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
			must(err)
		}
	}
	must(group.Close())
}
