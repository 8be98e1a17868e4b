// A process that uses Curator's locks and executes the commands of a test. Tests use it to share locks with Curator.
//
//     java -cp ... Peer ADDRESS SESSION_TIMEOUT_MS
//
// Each line of the input is a number and a command. Each line of the output is the number of a command and its answer, in the
// order in which the commands finish. A line that begins with an exclamation mark reports an event. The process exits when its
// input ends.
//
//     1 mutex m /path        1 ok
//     2 acquire t1 m         2 true
//     3 acquire t2 m 100     3 false
//     4 release t2 m         4 error java.lang.IllegalMonitorStateException: You do not own the lock: /path
//     5 revocable m          5 ok
//                            ! revoked m
//
// These commands create a named object. The object uses the client `main` unless the command contains client=C. It exists when
// the command is answered:
//
//     client C [address=A] [timeout=MS] [connection=MS] [namespace=N] [retries=N] [digest=USER:PASSWORD [acl=creator]]
//                                                              the first one is main; ! state C STATE; with acl=creator, only
//                                                              this identity has permissions on new nodes
//     mutex NAME /path [data=TEXT]
//     semaphore-mutex NAME /path
//     rw NAME /path [data=TEXT]                                the two locks are NAME.read and NAME.write
//     multi NAME /path... | LOCK...
//     semaphore NAME /path max=N | count=COUNT [data=TEXT]
//     count NAME /path [seed=N]                                ! count NAME VALUE, after each change
//
// Commands that Curator ties to a thread name the thread. Each thread executes its commands one after the other:
//
//     acquire THREAD LOCK [MS]                                 true, false
//     release THREAD LOCK
//     owned THREAD LOCK                                        whether this thread holds the lock
//     path THREAD LOCK                                         the node of its hold, or none
//     lease THREAD SEMAPHORE [MS] [quantity=N]                 the names of the nodes, or none
//     return THREAD SEMAPHORE [NODE...]                        without nodes: all leases
//     increment THREAD LOCK /path/of/file ROUNDS               in each round, under the lock: increments the numbers in two
//                                                              files, first FILE.a and then FILE.b
//     compare THREAD LOCK /path/of/file ROUNDS                 in each round, under the lock: checks that both are equal
//     interrupt THREAD                                         takes effect immediately
//
// One more thread executes all other commands:
//
//     held LOCK                                                whether this process holds the lock
//     participants LOCK | SEMAPHORE                            nodes
//     data SEMAPHORE NODE                                      the data of a lease that this process holds
//     revocable LOCK [release=THREAD]                          from the next acquire to the next release: ! revoked LOCK;
//                                                              with release=THREAD that thread releases the lock, and then
//                                                              ! released LOCK ANSWER
//     revoke /path/of/node                                     requests the release of the lock with this node
//     get COUNT, set COUNT VALUE
//     versioned COUNT                                          value and version; stored for try-set
//     try-set COUNT VALUE                                      true, false
//     connected C MS                                           waits until the client is connected: true, false
//     session C                                                id and password in hexadecimal
//     expire C                                                 makes the client treat its session as expired
//     close C | COUNT
//     version                                                  the version of Curator
//     exit                                                     ends the process after the answer, without closing sessions

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.ACLProvider;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.recipes.shared.VersionedValue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;

public class Peer {
    private static final String MAIN = "main";

    private final String address;
    private final String sessionTimeout;
    private final Map<String, Worker> workers = new ConcurrentHashMap<>();
    private final Map<String, Object> objects = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws IOException {
        new Peer(arguments[0], arguments[1]).run();
        Runtime.getRuntime().halt(0);
    }

    private Peer(String address, String sessionTimeout) {
        this.address = address;
        this.sessionTimeout = sessionTimeout;
    }

    private void run() throws IOException {
        objects.put(MAIN, client(new Command("0 client main")));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            dispatch(new Command(line));
        }
    }

    private void dispatch(Command command) {
        switch (command.verb) {
            case "acquire", "release", "owned", "path", "lease", "return", "increment", "compare" -> {
                Worker worker = worker(command.next());
                worker.add(() -> say(command.number, answered(command)));
            }
            case "interrupt" -> {
                worker(command.next()).interrupt();
                say(command.number, "ok");
            }
            case "exit" -> {
                say(command.number, "ok");
                Runtime.getRuntime().halt(0);
            }
            default -> worker(MAIN).add(() -> say(command.number, answered(command)));
        }
    }

    private Worker worker(String name) {
        return workers.computeIfAbsent(name, Worker::new);
    }

    /** A thread that acquires locks and owns its holds. */
    private final class Worker extends Thread {
        private final BlockingQueue<Runnable> work = new LinkedBlockingQueue<>();

        Worker(String name) {
            super(name);
            setDaemon(true);
            start();
        }

        void add(Runnable task) {
            work.add(task);
        }

        @Override
        public void run() {
            while (true) {
                try {
                    work.take().run();
                } catch (InterruptedException exception) {
                    // The interruption came while the thread waited for work, so it has no effect.
                }
                // Curator throws an exception and also sets the flag, so the flag must be cleared.
                interrupted();
            }
        }
    }

    private String answered(Command command) {
        try {
            return String.valueOf(answer(command));
        } catch (Throwable problem) {
            return "error " + problem.toString().replaceAll("\\s+", " ");
        }
    }

    private Object answer(Command command) throws Exception {
        return switch (command.verb) {
            case "client" -> define(command, client(command));
            case "mutex" -> define(command, mutex(command));
            case "semaphore-mutex" -> define(command, new InterProcessSemaphoreMutex(on(command), command.word(1)));
            case "rw" -> defineReadWrite(command);
            case "multi" -> define(command, multi(command));
            case "semaphore" -> define(command, new Semaphore(semaphore(command), new LinkedHashMap<>()));
            case "count" -> define(command, count(command));

            case "acquire" -> acquire(lock(command), command.milliseconds());
            case "release" -> done(() -> lock(command).release());
            case "owned" -> mutexOf(command).isOwnedByCurrentThread();
            case "path" -> path(mutexOf(command));
            case "lease" -> semaphoreOf(command).lease(command.milliseconds(), command.number("quantity", 1));
            case "return" -> done(() -> semaphoreOf(command).returnLeases(command.rest()));
            case "increment" -> done(() -> work(command, true));
            case "compare" -> done(() -> work(command, false));

            case "held" -> lock(command).isAcquiredInThisProcess();
            case "participants" -> String.join(" ", participants(named(command, Object.class)));
            case "data" -> new String(semaphoreOf(command).held(command.word(1)).getData(), StandardCharsets.UTF_8);
            case "revocable" -> done(() -> makeRevocable(command.word(0), command.option("release", null)));
            case "revoke" -> done(() -> Revoker.attemptRevoke(on(command), command.word(0)));

            case "get" -> countOf(command).count.getCount();
            case "set" -> done(() -> countOf(command).count.setCount(Integer.parseInt(command.word(1))));
            case "versioned" -> countOf(command).versioned();
            case "try-set" -> countOf(command).trySet(Integer.parseInt(command.word(1)));

            case "connected" -> named(command, CuratorFramework.class)
                    .blockUntilConnected(Integer.parseInt(command.word(1)), TimeUnit.MILLISECONDS);
            case "session" -> session(zookeeper(command));
            case "expire" -> done(() -> zookeeper(command).getTestable().injectSessionExpiration());
            case "close" -> done(() -> named(command, AutoCloseable.class).close());
            case "version" -> version();
            default -> throw new IllegalArgumentException("no such command: " + command.verb);
        };
    }

    private interface Action {
        void run() throws Exception;
    }

    private static String done(Action action) throws Exception {
        action.run();
        return "ok";
    }

    private String define(Command command, Object object) {
        objects.put(command.word(0), object);
        return "ok";
    }

    private String defineReadWrite(Command command) {
        var both = new InterProcessReadWriteLock(on(command), command.word(1), command.data());
        objects.put(command.word(0) + ".read", both.readLock());
        objects.put(command.word(0) + ".write", both.writeLock());
        return "ok";
    }

    private CuratorFramework client(Command command) {
        String name = command.word(0);
        var builder = CuratorFrameworkFactory.builder()
                .connectString(command.option("address", address))
                .sessionTimeoutMs(Integer.parseInt(command.option("timeout", sessionTimeout)))
                .connectionTimeoutMs(command.number("connection", 15_000))
                .retryPolicy(new RetryNTimes(command.number("retries", 10), 100))
                .namespace(command.option("namespace", null))
                // The tracker would use the addresses that the servers report, and bypass the proxy of a test.
                .ensembleTracker(false);
        if (command.option("digest", null) != null) {
            builder.authorization("digest", command.option("digest", null).getBytes(StandardCharsets.UTF_8));
        }
        if (command.option("acl", "").equals("creator")) {
            builder.aclProvider(new CreatorAcls());
        }
        CuratorFramework client = builder.build();
        client.getConnectionStateListenable().addListener((framework, state) -> say("!", "state " + name + " " + state));
        client.start();
        return client;
    }

    private InterProcessMutex mutex(Command command) {
        byte[] data = command.data();
        return new InterProcessMutex(on(command), command.word(1)) {
            @Override
            protected byte[] getLockNodeBytes() {
                return data;
            }
        };
    }

    private InterProcessMultiLock multi(Command command) {
        List<String> words = command.rest();
        if (words.get(0).startsWith("/")) {
            return new InterProcessMultiLock(on(command), words);
        }
        List<InterProcessLock> locks = new ArrayList<>();
        words.forEach(word -> locks.add(named(word, InterProcessLock.class)));
        return new InterProcessMultiLock(locks);
    }

    private InterProcessSemaphoreV2 semaphore(Command command) {
        String count = command.option("count", null);
        var semaphore = count == null
                ? new InterProcessSemaphoreV2(on(command), command.word(1), Integer.parseInt(command.option("max", null)))
                : new InterProcessSemaphoreV2(on(command), command.word(1), named(count, Count.class).count);
        if (command.data() != null) {
            semaphore.setNodeData(command.data());
        }
        return semaphore;
    }

    private Count count(Command command) throws Exception {
        SharedCount count = new SharedCount(on(command), command.word(1), command.number("seed", 0));
        count.addListener(new SharedCountListener() {
            @Override
            public void countHasChanged(SharedCountReader reader, int value) {
                say("!", "count " + command.word(0) + " " + value);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        });
        count.start();
        return new Count(count);
    }

    private static boolean acquire(InterProcessLock lock, Long milliseconds) throws Exception {
        if (milliseconds != null) {
            return lock.acquire(milliseconds, TimeUnit.MILLISECONDS);
        }
        lock.acquire();
        return true;
    }

    /** Does work that needs the lock. Without mutual exclusion, the two numbers differ, or a file is empty. */
    private void work(Command command, boolean increments) throws Exception {
        InterProcessLock lock = lock(command);
        Path first = Path.of(command.word(1) + ".a");
        Path second = Path.of(command.word(1) + ".b");
        for (int round = 0; round < Integer.parseInt(command.word(2)); round++) {
            lock.acquire();
            try {
                int number = Integer.parseInt(Files.readString(first));
                if (number != Integer.parseInt(Files.readString(second))) {
                    throw new IllegalStateException("another participant works at the same time");
                }
                if (increments) {
                    Files.writeString(first, String.valueOf(number + 1));
                    Files.writeString(second, String.valueOf(number + 1));
                }
            } finally {
                lock.release();
            }
        }
    }

    /** Returns the path of the lock node. The method of Curator is not public in all versions and classes. */
    private static Object path(InterProcessMutex mutex) throws ReflectiveOperationException {
        var getLockPath = InterProcessMutex.class.getDeclaredMethod("getLockPath");
        getLockPath.setAccessible(true);
        Object path = getLockPath.invoke(mutex);
        return path == null ? "none" : path;
    }

    private static Collection<String> participants(Object object) throws Exception {
        return object instanceof Semaphore semaphore
                ? semaphore.semaphore.getParticipantNodes()
                : ((InterProcessMutex) object).getParticipantNodes();
    }

    private void makeRevocable(String name, String thread) {
        named(name, InterProcessMutex.class).makeRevocable(lock -> {
            say("!", "revoked " + name);
            if (thread != null) {
                worker(thread).add(() -> say("!", "released " + name + " " + answered(new Command("! release " + name))));
            }
        });
    }

    /** Returns the version of Curator. Debian's jars contain the version only in this file. */
    private static String version() throws IOException {
        try (var file = CuratorFramework.class.getResourceAsStream(
                "/META-INF/maven/org.apache.curator/curator-framework/pom.properties")) {
            Properties properties = new Properties();
            properties.load(file);
            return properties.getProperty("version");
        }
    }

    private static String session(ZooKeeper zookeeper) {
        return Long.toHexString(zookeeper.getSessionId()) + " " + HexFormat.of().formatHex(zookeeper.getSessionPasswd());
    }

    /** A semaphore, and the leases of it that this process holds. */
    private record Semaphore(InterProcessSemaphoreV2 semaphore, Map<String, Lease> leases) {
        synchronized void keep(Collection<Lease> taken) {
            taken.forEach(lease -> leases.put(lease.getNodeName(), lease));
        }

        synchronized Lease held(String node) {
            if (!leases.containsKey(node)) {
                throw new IllegalArgumentException("no lease " + node + " is held here");
            }
            return leases.get(node);
        }

        String lease(Long milliseconds, int quantity) throws Exception {
            Collection<Lease> taken = milliseconds == null
                    ? semaphore.acquire(quantity)
                    : semaphore.acquire(quantity, milliseconds, TimeUnit.MILLISECONDS);
            if (taken == null) {
                return "none";
            }
            keep(taken);
            return String.join(" ", taken.stream().map(Lease::getNodeName).toList());
        }

        synchronized void returnLeases(List<String> nodes) throws IOException {
            for (String node : nodes.isEmpty() ? List.copyOf(leases.keySet()) : nodes) {
                held(node).close();
                leases.remove(node);
            }
        }
    }

    /** A count, and its value when a command last read its version. */
    private static final class Count implements AutoCloseable {
        final SharedCount count;
        private VersionedValue<Integer> seen;

        Count(SharedCount count) {
            this.count = count;
        }

        String versioned() {
            seen = count.getVersionedValue();
            return seen.getValue() + " " + seen.getVersion();
        }

        boolean trySet(int value) throws Exception {
            return count.trySetCount(seen, value);
        }

        @Override
        public void close() throws IOException {
            count.close();
        }
    }

    private CuratorFramework on(Command command) {
        return named(command.option("client", MAIN), CuratorFramework.class);
    }

    private ZooKeeper zookeeper(Command command) throws Exception {
        return named(command, CuratorFramework.class).getZookeeperClient().getZooKeeper();
    }

    private InterProcessLock lock(Command command) {
        return named(command, InterProcessLock.class);
    }

    private InterProcessMutex mutexOf(Command command) {
        return named(command, InterProcessMutex.class);
    }

    private Semaphore semaphoreOf(Command command) {
        return named(command, Semaphore.class);
    }

    private Count countOf(Command command) {
        return named(command, Count.class);
    }

    /** Returns the object that the first word names. */
    private <T> T named(Command command, Class<T> type) {
        return named(command.word(0), type);
    }

    private <T> T named(String name, Class<T> type) {
        if (!type.isInstance(objects.get(name))) {
            throw new IllegalArgumentException("no " + type.getSimpleName() + " is called " + name);
        }
        return type.cast(objects.get(name));
    }

    /** Creates all nodes for the identities of the client only. */
    private static final class CreatorAcls implements ACLProvider {
        @Override
        public List<ACL> getDefaultAcl() {
            return ZooDefs.Ids.CREATOR_ALL_ACL;
        }

        @Override
        public List<ACL> getAclForPath(String path) {
            return ZooDefs.Ids.CREATOR_ALL_ACL;
        }
    }

    /** A line of the input: a number, a verb, words, options. */
    private static final class Command {
        final String number;
        final String verb;
        private final List<String> words = new ArrayList<>();
        private final Map<String, String> options = new HashMap<>();

        Command(String line) {
            String[] parts = line.split(" ");
            number = parts[0];
            verb = parts[1];
            for (String part : List.of(parts).subList(2, parts.length)) {
                int equals = part.indexOf('=');
                if (equals < 0 || part.startsWith("/")) {
                    words.add(part);
                } else {
                    options.put(part.substring(0, equals), part.substring(equals + 1));
                }
            }
        }

        /** Removes the first word and returns it. */
        String next() {
            return words.remove(0);
        }

        String word(int index) {
            return words.get(index);
        }

        /** Returns the words after the first. */
        List<String> rest() {
            return words.subList(1, words.size());
        }

        /** Returns the second word as a number, or null if there is no second word. */
        Long milliseconds() {
            return words.size() > 1 ? Long.valueOf(words.get(1)) : null;
        }

        String option(String name, String otherwise) {
            return options.getOrDefault(name, otherwise);
        }

        int number(String name, int otherwise) {
            return options.containsKey(name) ? Integer.parseInt(options.get(name)) : otherwise;
        }

        byte[] data() {
            return options.containsKey("data") ? options.get("data").getBytes(StandardCharsets.UTF_8) : null;
        }
    }

    private static synchronized void say(String number, String what) {
        System.out.println(number + " " + what);
        System.out.flush();
    }
}
