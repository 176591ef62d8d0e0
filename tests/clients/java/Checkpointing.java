import java.nio.file.Path;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;

/** Flink's Kafka source in a MiniCluster; it commits at checkpoints, the last is a savepoint. */
public final class Checkpointing {
    public static void main(String[] words) throws Exception {
        Words.read(words);
        Configuration config = Configuration.fromMap(java.util.Map.of(
            "restart-strategy.type", "none",
            "taskmanager.memory.network.min", "8m",
            "taskmanager.memory.network.max", "8m",
            "taskmanager.memory.managed.size", "0"));
        var environment = StreamExecutionEnvironment.createLocalEnvironment(1, config);
        environment.enableCheckpointing(Words.number("commit_ms"));
        KafkaSource<Tuple2<Integer, Long>> source = KafkaSource.<Tuple2<Integer, Long>>builder()
            .setProperties(Words.settings())
            .setTopics(Words.get("topic"))
            .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
            .setDeserializer(new Places())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "kafka")
            .map(Checkpointing::note)
            .returns(Types.TUPLE(Types.INT, Types.LONG))
            .sinkTo(new DiscardingSink<>());
        var job = environment.executeAsync();
        job.getJobExecutionResult().exceptionally(error -> {
            if (!Words.ending) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
            return null;
        });
        Words.awaitEnd();
        String savepoints = Path.of(Words.get("state")).toUri().toString();
        job.stopWithSavepoint(false, savepoints, SavepointFormatType.CANONICAL).get();
        job.getJobExecutionResult().get();
    }

    private static Tuple2<Integer, Long> note(Tuple2<Integer, Long> place) {
        Words.handle(place.f0, place.f1);
        return place;
    }

    private static final class Places
        implements KafkaRecordDeserializationSchema<Tuple2<Integer, Long>> {
        private static final long serialVersionUID = 1;

        @Override
        public void deserialize(
            ConsumerRecord<byte[], byte[]> message, Collector<Tuple2<Integer, Long>> out) {
            out.collect(Tuple2.of(message.partition(), message.offset()));
        }

        @Override
        public TypeInformation<Tuple2<Integer, Long>> getProducedType() {
            return Types.TUPLE(Types.INT, Types.LONG);
        }
    }
}
