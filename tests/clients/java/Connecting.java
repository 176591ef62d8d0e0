import java.nio.file.Path;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.connector.policy.AllConnectorClientConfigOverridePolicy;
import org.apache.kafka.connect.mirror.MirrorSourceConnector;
import org.apache.kafka.connect.runtime.Worker;
import org.apache.kafka.connect.runtime.isolation.Plugins;
import org.apache.kafka.connect.runtime.standalone.StandaloneConfig;
import org.apache.kafka.connect.runtime.standalone.StandaloneHerder;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;
import org.apache.kafka.connect.storage.FileOffsetBackingStore;
import org.apache.kafka.connect.storage.StringConverter;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * Kafka Connect, standalone and without its web server: a sink whose poison goes to `dlq`, or the
 * source of MirrorMaker 2, which copies `topic` to `source.TOPIC` on the same brokers.
 */
public final class Connecting {
    public static void main(String[] words) throws Exception {
        Words.read(words);
        Map<String, String> worker = new HashMap<>(Map.of(
            "bootstrap.servers", Words.get("bootstrap"),
            "key.converter", StringConverter.class.getName(),
            "value.converter", StringConverter.class.getName(),
            "offset.flush.interval.ms", Words.get("commit_ms"),
            "offset.storage.file.filename", Path.of(Words.get("state"), "offsets").toString(),
            "plugin.discovery", "service_load"));
        Plugins plugins = new Plugins(worker);
        Path.of(Words.get("state")).toFile().mkdirs();
        StandaloneConfig config = new StandaloneConfig(worker);
        var store = new FileOffsetBackingStore(plugins.newInternalConverter(
            true, "org.apache.kafka.connect.json.JsonConverter", Map.of("schemas.enable", "false")));
        store.configure(config);
        var policy = new AllConnectorClientConfigOverridePolicy();
        var herder = new StandaloneHerder(
            new Worker("worker", Time.SYSTEM, plugins, config, store, policy), "cluster", policy);
        herder.start();
        Map<String, String> connector = Words.get("mode").equals("mirror") ? mirror() : sink();
        herder.putConnectorConfig(connector.get("name"), connector, false, (error, made) -> {
            if (error != null) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
        Words.awaitEnd();
        herder.stop();
    }

    private static Map<String, String> sink() {
        Map<String, String> sink = new HashMap<>(Map.of(
            "name", "sink",
            "connector.class", Sink.class.getName(),
            "topics", Words.get("topic"),
            "consumer.override.group.id", Words.get("group"),
            "consumer.override.auto.offset.reset", "earliest",
            "errors.tolerance", "all"));
        if (!Words.get("dlq").isEmpty()) {
            sink.put("errors.deadletterqueue.topic.name", Words.get("dlq"));
            sink.put("errors.deadletterqueue.topic.replication.factor", "1");
            sink.put("errors.deadletterqueue.context.headers.enable", "true");
        }
        return sink;
    }

    private static Map<String, String> mirror() {
        return Map.ofEntries(
            Map.entry("name", "mirror"),
            Map.entry("connector.class", MirrorSourceConnector.class.getName()),
            Map.entry("source.cluster.alias", "source"),
            Map.entry("target.cluster.alias", "target"),
            Map.entry("source.cluster.bootstrap.servers", Words.get("bootstrap")),
            Map.entry("target.cluster.bootstrap.servers", Words.get("bootstrap")),
            Map.entry("topics", Words.get("topic")),
            Map.entry("replication.factor", "1"),
            Map.entry("offset-syncs.topic.replication.factor", "1"),
            Map.entry("sync.topic.acls.enabled", "false"),
            Map.entry("key.converter", "org.apache.kafka.connect.converters.ByteArrayConverter"),
            Map.entry("value.converter", "org.apache.kafka.connect.converters.ByteArrayConverter"),
            Map.entry("transforms", "note"),
            Map.entry("transforms.note.type", Noting.class.getName()));
    }

    /** Notes what it is given; tells Connect of poison. */
    public static final class Sink extends SinkConnector {
        @Override
        public void start(Map<String, String> config) {}

        @Override
        public void stop() {}

        @Override
        public Class<? extends Task> taskClass() {
            return Taking.class;
        }

        @Override
        public List<Map<String, String>> taskConfigs(int most) {
            return List.of(Map.of());
        }

        @Override
        public ConfigDef config() {
            return new ConfigDef();
        }

        @Override
        public String version() {
            return "1";
        }
    }

    public static final class Taking extends SinkTask {
        @Override
        public void start(Map<String, String> config) {}

        @Override
        public void put(Collection<SinkRecord> messages) {
            for (SinkRecord message : messages) {
                Words.handle(message.kafkaPartition(), message.kafkaOffset());
                try {
                    Words.refusePoison(message.value());
                } catch (IllegalArgumentException error) {
                    context.errantRecordReporter().report(message, error);
                }
            }
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }

    /** Of a mirror, notes what is on its way to the target. */
    public static final class Noting<R extends ConnectRecord<R>> implements Transformation<R> {
        @Override
        public R apply(R message) {
            var source = (org.apache.kafka.connect.source.SourceRecord) (Object) message;
            int partition = ((Number) source.sourcePartition().get("partition")).intValue();
            Words.handle(partition, ((Number) source.sourceOffset().get("offset")).longValue());
            return message;
        }

        @Override
        public ConfigDef config() {
            return new ConfigDef();
        }

        @Override
        public void configure(Map<String, ?> config) {}

        @Override
        public void close() {}
    }
}
