// Curator's InterProcessMutex as a driver of the benchmark. bench/src/driver.rs describes the commands and answers.
//
//     java -cp ... CuratorLock own | shared
//
// With `own`, each worker has its own mutex object. With `shared`, all workers of a path share one object.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public final class CuratorLock {
    private static final int SESSION_TIMEOUT_MS = 60_000;
    private static final int CONNECTION_TIMEOUT_MS = 15_000;

    private final boolean isShared;
    private CuratorFramework client;
    private long hold;
    private List<Worker> workers = List.of();

    private CuratorLock(boolean isShared) {
        this.isShared = isShared;
    }

    public static void main(String[] arguments) throws Exception {
        CuratorLock driver = new CuratorLock(arguments[0].equals("shared"));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(driver.execute(line.split(" ")));
        }
        System.exit(0);
    }

    private String execute(String[] words) {
        try {
            if (words[0].equals("prepare") && words.length == 6) {
                long hold = Long.parseLong(words[5]) * 1000;
                prepare(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]), hold);
                return "{}";
            }
            if (words[0].equals("go") && words.length == 3) {
                return go(Long.parseLong(words[1]), Long.parseLong(words[2]));
            }
            return error("no such command: " + String.join(" ", words));
        } catch (Exception exception) {
            return error(exception.toString());
        }
    }

    private void prepare(String address, String base, int count, int paths, long hold) throws Exception {
        disconnect();
        this.hold = hold;
        client = CuratorFrameworkFactory.newClient(
                address, SESSION_TIMEOUT_MS, CONNECTION_TIMEOUT_MS, new ExponentialBackoffRetry(1000, 3));
        client.start();
        List<InterProcessMutex> mutexes = new ArrayList<>();
        workers = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            boolean isFirst = index < paths;
            if (isFirst || !isShared) mutexes.add(new InterProcessMutex(client, base + "-" + index % paths));
            InterProcessMutex mutex = mutexes.get(isShared ? index % paths : index);
            // Use each path once, so that everything that is created only once exists.
            if (isFirst) {
                mutex.acquire();
                mutex.release();
            }
            workers.add(new Worker(mutex));
        }
    }

    private String go(long start, long end) throws Exception {
        for (Worker worker : workers) {
            worker.start = start;
            worker.end = end;
            worker.start();
        }
        StringBuilder answer = new StringBuilder("{\"stamps\":[");
        Exception failure = null;
        for (int index = 0; index < workers.size(); index++) {
            Worker worker = workers.get(index);
            worker.join();
            if (worker.failure != null) failure = worker.failure;
            worker.appendStamps(index, answer);
        }
        disconnect();
        return failure == null ? answer.append("]}").toString() : error(failure.toString());
    }

    private void disconnect() {
        if (client != null) client.close();
        client = null;
        workers = List.of();
    }

    private static String error(String text) {
        return "{\"error\":\"" + text.replaceAll("[\"\\\\\\p{Cntrl}]", "'") + "\"}";
    }

    private final class Worker extends Thread {
        private final InterProcessMutex mutex;
        private long start;
        private long end;
        /** Four points in time for each hold: the call and the return of acquire, and the call and the return of release. */
        private long[] stamps = new long[4 * 4096];
        private int count;
        private Exception failure;

        private Worker(InterProcessMutex mutex) {
            this.mutex = mutex;
        }

        @Override
        public void run() {
            try {
                for (long left = start - System.nanoTime(); left > 0; left = start - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                while (cycle() < end) {}
            } catch (Exception exception) {
                failure = exception;
            }
        }

        private long cycle() throws Exception {
            if (count + 4 > stamps.length) stamps = java.util.Arrays.copyOf(stamps, 2 * stamps.length);
            stamps[count] = System.nanoTime();
            mutex.acquire();
            stamps[count + 1] = System.nanoTime();
            if (hold > 0) TimeUnit.NANOSECONDS.sleep(hold);
            stamps[count + 2] = System.nanoTime();
            mutex.release();
            stamps[count + 3] = System.nanoTime();
            count += 4;
            return stamps[count - 1];
        }

        private void appendStamps(int index, StringBuilder answer) {
            for (int at = 0; at < count; at++) {
                if (at % 4 == 0) answer.append(index == 0 && at == 0 ? "" : ",").append(index);
                answer.append(',').append(stamps[at]);
            }
        }
    }
}
