import java.io.FileReader;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What Java's client says to a file: a line `starts` or `refuses REASON` for each `ROLE FILE`. Before
 * them the names of the producer's and of the consumer's settings, a line each.
 */
public class Refusal {
    public static void main(String[] arguments) throws Exception {
        System.out.println(String.join(" ", ProducerConfig.configNames()));
        System.out.println(String.join(" ", ConsumerConfig.configNames()));
        for (int at = 0; at < arguments.length; at += 2) {
            Properties settings = new Properties();
            try (FileReader reader = new FileReader(arguments[at + 1])) {
                settings.load(reader);
            }
            settings.putIfAbsent("bootstrap.servers", "127.0.0.1:1");
            try (AutoCloseable client = arguments[at].equals("producer")
                    ? new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())
                    : new KafkaConsumer<>(
                            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                System.out.println("starts");
            } catch (RuntimeException error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                System.out.println("refuses " + cause.getMessage());
            }
        }
    }
}
