// Uses each of Curator's recipes in two clients, on the server whose address is the argument, and prints the results.
//
// The output is the same in every run and on every ZooKeeper server.

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryOneTime;

public class Recipes {
    private static final int SHORT_MS = 200;
    private static final int LONG_S = 20;

    private final String address;
    private final CuratorFramework one;
    private final CuratorFramework two;

    public static void main(String[] arguments) throws Exception {
        new Recipes(arguments[0]).run();
    }

    private Recipes(String address) {
        this.address = address;
        one = client();
        two = client();
    }

    private void run() throws Exception {
        mutex();
        mutexOfOneWhoGoes();
        readWriteLock();
        semaphore();
        multiLock();
        sharedCount();
        leaderLatch();
        cache();
        one.close();
        two.close();
    }

    private void mutex() throws Exception {
        InterProcessMutex first = new InterProcessMutex(one, "/recipes/mutex");
        InterProcessMutex second = new InterProcessMutex(two, "/recipes/mutex");
        first.acquire();
        say("mutex: again", acquired(first), "the other", tried(second));
        first.release();
        say("mutex: half released, the other", tried(second), "participants", first.getParticipantNodes().size());
        first.release();
        say("mutex: released, the other", acquired(second), "held by it", second.isAcquiredInThisProcess());
        second.release();
        say("mutex: left behind", one.getChildren().forPath("/recipes/mutex"));
    }

    private void mutexOfOneWhoGoes() throws Exception {
        CuratorFramework third = client();
        new InterProcessMutex(third, "/recipes/gone").acquire();
        InterProcessMutex second = new InterProcessMutex(two, "/recipes/gone");
        say("mutex of another", tried(second));
        third.close();
        say("mutex of one who has gone", acquired(second));
        second.release();
    }

    private void readWriteLock() throws Exception {
        InterProcessReadWriteLock first = new InterProcessReadWriteLock(one, "/recipes/rw");
        InterProcessReadWriteLock second = new InterProcessReadWriteLock(two, "/recipes/rw");
        say("read-write: read", acquired(first.readLock()), "read too", acquired(second.readLock()));
        say("read-write: write", tried(second.writeLock()));
        first.readLock().release();
        second.readLock().release();
        say("read-write: write", acquired(second.writeLock()), "read as well", acquired(second.readLock()));
        say("read-write: the other reads", tried(first.readLock()), "or writes", tried(first.writeLock()));
        second.writeLock().release();
        say("read-write: with a reader, the other reads", acquired(first.readLock()), "or writes", tried(first.writeLock()));
        second.readLock().release();
        first.readLock().release();
    }

    private void semaphore() throws Exception {
        InterProcessSemaphoreV2 first = new InterProcessSemaphoreV2(one, "/recipes/semaphore", 2);
        InterProcessSemaphoreV2 second = new InterProcessSemaphoreV2(two, "/recipes/semaphore", 2);
        first.setNodeData("first".getBytes());
        Lease lease = first.acquire(LONG_S, TimeUnit.SECONDS);
        Lease other = second.acquire(LONG_S, TimeUnit.SECONDS);
        say("semaphore: data", new String(lease.getData()), "leases", second.getParticipantNodes().size());
        say("semaphore: a third", second.acquire(SHORT_MS, TimeUnit.MILLISECONDS) != null);
        first.returnLease(lease);
        Lease third = second.acquire(LONG_S, TimeUnit.SECONDS);
        say("semaphore: a third after one was returned", third != null);
        second.returnLease(other);
        second.returnLease(third);
    }

    private void multiLock() throws Exception {
        InterProcessMutex held = new InterProcessMutex(one, "/recipes/multi/b");
        InterProcessMultiLock both = new InterProcessMultiLock(two, List.of("/recipes/multi/a", "/recipes/multi/b"));
        held.acquire();
        say("multi: with one taken", tried(both));
        held.release();
        say("multi: with none taken", acquired(both), "the other", tried(held));
        both.release();
    }

    private void sharedCount() throws Exception {
        SharedCount first = new SharedCount(one, "/recipes/count", 3);
        SharedCount second = new SharedCount(two, "/recipes/count", 4);
        first.start();
        second.start();
        say("count", first.getCount(), second.getCount());
        CountDownLatch changed = new CountDownLatch(1);
        SharedCountListener listener = new SharedCountListener() {
            @Override
            public void countHasChanged(SharedCountReader count, int newCount) {
                say("count: told", newCount);
                changed.countDown();
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        };
        second.addListener(listener);
        var stale = second.getVersionedValue();
        first.setCount(5);
        say("count: heard", changed.await(LONG_S, TimeUnit.SECONDS));
        second.removeListener(listener);
        say("count: from an old one", second.trySetCount(stale, 9));
        say("count: from the newest", second.trySetCount(second.getVersionedValue(), 7));
        first.close();
        second.close();
    }

    private void leaderLatch() throws Exception {
        LeaderLatch first = new LeaderLatch(one, "/recipes/latch", "first");
        LeaderLatch second = new LeaderLatch(two, "/recipes/latch", "second");
        first.start();
        say("latch: first leads", first.await(LONG_S, TimeUnit.SECONDS));
        second.start();
        while (second.getParticipants().size() < 2) {
            Thread.sleep(5);
        }
        say("latch: leader", second.getLeader().getId(), "second leads", second.await(SHORT_MS, TimeUnit.MILLISECONDS));
        first.close();
        say("latch: second leads", second.await(LONG_S, TimeUnit.SECONDS), "leader", second.getLeader().getId());
        second.close();
    }

    /** A persistent watch on all nodes below a path. */
    private void cache() throws Exception {
        one.create().creatingParentsIfNeeded().forPath("/recipes/cache/a", "1".getBytes());
        CountDownLatch filled = new CountDownLatch(1);
        CountDownLatch changed = new CountDownLatch(2);
        CountDownLatch gone = new CountDownLatch(2);
        CuratorCache cache = CuratorCache.build(two, "/recipes/cache");
        cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(filled::countDown).build());
        cache.start();
        filled.await(LONG_S, TimeUnit.SECONDS);
        List<String> seen = new ArrayList<>();
        cache.listenable().addListener((type, before, after) -> {
            seen.add(type + " " + (after == null ? before : after).getPath());
            (type == CuratorCacheListener.Type.NODE_DELETED ? gone : changed).countDown();
        });
        one.create().forPath("/recipes/cache/a/b", "2".getBytes());
        one.setData().forPath("/recipes/cache/a", "3".getBytes());
        // The cache reads each changed node. It finds nothing if the node is already gone.
        say("cache: heard of changes", changed.await(LONG_S, TimeUnit.SECONDS));
        one.delete().deletingChildrenIfNeeded().forPath("/recipes/cache/a");
        say("cache: heard", gone.await(LONG_S, TimeUnit.SECONDS), new TreeSet<>(seen));
        cache.close();
    }

    private CuratorFramework client() {
        CuratorFramework client = CuratorFrameworkFactory.newClient(address, 20_000, 20_000, new RetryOneTime(100));
        client.start();
        return client;
    }

    /** Returns whether the lock is free now. */
    private static boolean tried(InterProcessLock lock) throws Exception {
        boolean acquired = lock.acquire(SHORT_MS, TimeUnit.MILLISECONDS);
        if (acquired) {
            lock.release();
        }
        return acquired;
    }

    private static boolean acquired(InterProcessLock lock) throws Exception {
        return lock.acquire(LONG_S, TimeUnit.SECONDS);
    }

    private static void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(word).append(' ');
        }
        System.out.println(line.toString().trim());
    }
}
