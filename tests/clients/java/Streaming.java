import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;

/** A small topology of Kafka Streams: `topic`, a processor, `out`. Poison goes to `dlq` (KIP-1034). */
public final class Streaming {
    public static void main(String[] words) throws Exception {
        Words.read(words);
        Properties settings = Words.settings();
        settings.put("application.id", Words.get("group"));
        settings.put("state.dir", Words.get("state"));
        settings.put("commit.interval.ms", Words.get("commit_ms"));
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("processing.exception.handler",
            "org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler");
        if (!Words.get("dlq").isEmpty()) {
            settings.put("errors.dead.letter.queue.topic.name", Words.get("dlq"));
        }
        StreamsBuilder builder = new StreamsBuilder();
        var processed = builder.<String, String>stream(Words.get("topic")).processValues(Noting::new);
        if (!Words.get("out").isEmpty()) {
            processed.to(Words.get("out"));
        }
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.start();
            Words.awaitEnd();
        }
    }

    static final class Noting implements FixedKeyProcessor<String, String, String> {
        private FixedKeyProcessorContext<String, String> context;

        @Override
        public void init(FixedKeyProcessorContext<String, String> given) {
            context = given;
        }

        @Override
        public void process(FixedKeyRecord<String, String> message) {
            var place = context.recordMetadata().orElseThrow();
            Words.handle(place.partition(), place.offset());
            Words.refusePoison(message.value());
            context.forward(message);
        }
    }
}
