import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

/**
 * Asks Connect's own converter and Avro's own decoder. Each line of the input is a question, each of the output its answer:
 *
 *   json <key=value,...> <value in hex>      ok <what it writes of what it has read, in hex, or !why>  |  no <why>
 *   avro <schema in hex> <data in hex>       ok <bytes left over>                                        |  no <why>
 */
public final class Judge {
    private static final HexFormat HEX = HexFormat.of();
    private static final Map<String, JsonConverter> CONVERTERS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            String answer;
            try {
                answer = "ok " + (parts[0].equals("json") ? json(parts[1], parts[2]) : avro(parts[1], parts[2]));
            } catch (Throwable error) { // out of memory or of stack is an answer too
                answer = "no " + error.toString().replace('\n', ' ').replace('\r', ' ');
            }
            out.println(answer);
        }
        out.flush();
    }

    private static String json(String settings, String value) {
        JsonConverter converter = CONVERTERS.computeIfAbsent(settings, Judge::converter);
        SchemaAndValue read = converter.toConnectData("topic", HEX.parseHex(value));
        try {
            byte[] written = converter.fromConnectData("topic", read.schema(), read.value());
            return written == null ? "" : HEX.formatHex(written);
        } catch (RuntimeException error) {
            return "!" + error; // what it has read it cannot write
        }
    }

    private static JsonConverter converter(String settings) {
        Map<String, String> config = new HashMap<>();
        for (String setting : settings.split(",")) {
            String[] pair = setting.split("=", 2);
            config.put(pair[0], pair[1]);
        }
        JsonConverter made = new JsonConverter();
        made.configure(config, false);
        return made;
    }

    private static String avro(String schema, String data) throws java.io.IOException {
        Schema parsed = new Schema.Parser().parse(new String(HEX.parseHex(schema), StandardCharsets.UTF_8));
        BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(HEX.parseHex(data), null);
        new GenericDatumReader<>(parsed).read(null, decoder);
        int left = 0;
        while (!decoder.isEnd()) {
            decoder.skipFixed(1);
            left++;
        }
        return Integer.toString(left);
    }
}
