import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The plain consumer, in the ways in which people commit. */
public final class Plain {
    private static final Map<TopicPartition, OffsetAndMetadata> HANDLED = new HashMap<>();
    private static KafkaConsumer<byte[], byte[]> consumer;
    private static String mode;
    private static boolean commitsItself;
    private static boolean commitsPolls;
    private static Map<TopicPartition, Long> ends;
    private static long committedAt = System.nanoTime();

    public static void main(String[] words) throws Exception {
        Words.read(words);
        mode = Words.get("mode");
        Properties settings = Words.settings();
        commitsItself = List.of("range", "cooperative", "consumer").contains(mode);
        settings.putIfAbsent("enable.auto.commit", commitsItself);
        commitsPolls = commitsItself && "false".equals(settings.get("enable.auto.commit"));
        settings.putIfAbsent("auto.commit.interval.ms", Words.get("commit_ms"));
        if (mode.equals("consumer")) {
            settings.put("group.protocol", "consumer");
        } else if (!mode.equals("assign")) {
            String assignor = mode.equals("cooperative") ? "CooperativeSticky" : "Range";
            settings.put("partition.assignment.strategy",
                "org.apache.kafka.clients.consumer." + assignor + "Assignor");
        }
        consumer = new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        Words.hearEnd();
        start();
        while (!Words.ending && !(Words.is("once") && reachedEnd())) {
            ConsumerRecords<byte[], byte[]> messages = consumer.poll(Duration.ofMillis(200));
            for (ConsumerRecord<byte[], byte[]> message : messages) {
                Words.handle(message.partition(), message.offset());
                // What most people write: without the leader's epoch.
                HANDLED.put(new TopicPartition(message.topic(), message.partition()),
                    new OffsetAndMetadata(message.offset() + 1));
                if (!mode.equals("async")) {
                    commitInTime();
                }
            }
            commitInTime();
            if (commitsPolls && !messages.isEmpty()) {
                commitPolled();
            }
        }
        commit();
        consumer.close();
    }

    private static void start() {
        String topic = Words.get("topic");
        if (mode.equals("assign")) {
            List<TopicPartition> all = consumer.partitionsFor(topic).stream()
                .map(one -> new TopicPartition(topic, one.partition())).collect(Collectors.toList());
            consumer.assign(all);
            return;
        }
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> gone) {
                commit();
                HANDLED.keySet().removeAll(gone);
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> fresh) {}
        });
    }

    /** A job: whether all that was there when it had its partitions is handled. */
    private static boolean reachedEnd() {
        if (consumer.assignment().isEmpty()) {
            return false;
        }
        if (ends == null) {
            ends = consumer.endOffsets(consumer.assignment());
        }
        return ends.entrySet().stream()
            .allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }

    private static void commitInTime() {
        boolean due = System.nanoTime() - committedAt >= Words.number("commit_ms") * 1_000_000;
        if (!due || commitsItself || Words.is("once")) {
            return;
        }
        if (mode.equals("async")) {
            consumer.commitAsync();
        } else {
            commit();
        }
        committedAt = System.nanoTime();
    }

    /** What is refused is logged, and committed with what the next poll brings: if it does. */
    private static void commitPolled() {
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException error) {
            System.err.println(error);
        }
    }

    private static void commit() {
        if (mode.equals("async")) {
            consumer.commitSync();
        } else if (!commitsItself && !HANDLED.isEmpty()) {
            consumer.commitSync(HANDLED);
        }
    }
}
