//! Clients. Each client has one ZooKeeper session, which any number of locks and threads can share. The code in this
//! file connects clients, creates their locks and semaphores, and starts requests that need no lock. The code does not
//! acquire or release locks.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::Span;
use zklock_core::acl::Permission;
use zklock_core::engine::{Answer, Engine, Event, Metrics, Recipe};
use zklock_core::error::{Error, Result, Status};
use zklock_core::path;
use zklock_core::recipe::{Children, Mode, NodeContent, NodeRequest, QueueNode};
use zklock_core::session::{ClientState, ConnectString};
use zklock_process::ForkEpoch;

use crate::client_inner::ClientInner;
use crate::client_lock::{ClientLock, MAX_DATA};
use crate::config::Config;
use crate::listener::Listener;
use crate::lock::Lock;
use crate::operation::{InProgress, Operation};
use crate::request::Request;
use crate::runtime::{
    Completion, EventDelivery, EventHandler, EventSource, Hook, Listen, PendingOp, Scope, Shell, now,
};
use crate::semaphore::Semaphore;
use crate::span;

/// A client has one ZooKeeper session, which any number of locks and threads can share. If the session ends, all holds
/// are lost, and the client begins a new session.
///
/// Clones of a client share its session. [`close`](Self::close) closes the client and ends the session. The library
/// also closes the client when the program has dropped every clone of the client and all its locks, semaphores and
/// leases. Any thread may call any method of a client.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<ClientInner>,
}

impl Client {
    /// Connects to a ZooKeeper server and waits for the session. `servers` is a list of addresses with an optional
    /// chroot, for example `host:2181,host:2181/chroot`. All paths of the client are relative to the chroot.
    ///
    /// Errors:
    /// - INVALID if an argument is not valid, or a file with credentials or certificates is not usable. The message
    ///   names the invalid part of the argument, or the unusable file.
    /// - CONNECTION if no server accepted the client within the connect timeout. The message says why each server
    ///   failed.
    /// - AUTH if a server refused the credentials, or a credentials callback failed. Also AUTH if the last attempt at
    ///   every server failed because of a certificate. In this case, the client refused the certificate of the server,
    ///   or the server refused the certificate of the client.
    /// - SERVER if the chroot does not exist and [`Config::create_chroot`] is off.
    /// - DENIED if an access control list does not allow the client to create the chroot.
    /// - EXHAUSTED if the process has no descriptors or threads left.
    ///
    /// Blocks until the client has a session or the connect timeout has passed.
    pub fn connect(servers: &str, config: &Config) -> Result<Self> {
        Self::start_connect(servers, config)?.wait()
    }

    /// Starts connecting to a server, without waiting for the connection. In all other respects, this method works like
    /// [`connect`](Self::connect). If the program drops the returned [`Operation`] early, the client stops connecting.
    /// Dropping the last object that uses a client blocks until the session has ended, unless
    /// [`Config::end_in_background`] is on. If the program cancels the operation, its error says why the client is not
    /// connected yet.
    pub fn start_connect(servers: &str, config: &Config) -> Result<Operation<Self>> {
        config.check()?;
        let target = ConnectString::parse(servers)?;
        let (started, span) = (now(), span::connect(servers));
        let entropy = Box::new(|| uuid::Uuid::new_v4().as_u128());
        let mut engine = Engine::new(target, config.session(), started, entropy);
        engine.set_max_path_bytes(config.max_path_bytes);
        if config.wait_for_kazoo {
            engine.enable_kazoo_queuing();
        }
        engine.set_acls(config.acls.clone());
        if config.create_chroot {
            engine.enable_chroot_creation();
        }
        let delivery = EventDelivery::open(&config.dispatch_mode, config.handler.clone())?;
        let shell = Shell::start(engine, delivery, config.attempt_inputs())?;
        let client = Self { inner: Arc::new(ClientInner::new(shell, servers, config.end_in_background)) };
        let deadline = started + config.connect_timeout;
        let connect = |engine: &mut Engine, now| engine.connect(now, deadline);
        let pending = PendingOp::start(&client.inner.shell, Some(deadline), connect)?;
        Ok(Operation::new(Connecting { client, pending, span }))
    }

    /// Replaces the server list of the client. `servers` has the same form as in [`connect`](Self::connect). If the new
    /// list contains a chroot, it must be the same as the client's chroot. The client's chroot does not change.
    ///
    /// The client keeps its session, its holds and the positions of its waiters. The client stays connected to its
    /// server, except in two cases. If the new list does not contain the server, the client moves to a server in that
    /// list. If the new list contains more servers than the old list, some clients move to an added server. Each server
    /// then has about the same number of clients. Before a client moves to another server, it waits for the answers to
    /// its requests, for at most a sixth of the session timeout. While the client moves to another server, its holds
    /// are SUSPENDED. A hold is lost only if the client reaches no server of the new list before the session ends.
    ///
    /// Errors: INVALID if the list is not valid or has another chroot; CLOSED, FORKED. Does not block. Any thread may
    /// call this method.
    pub fn set_servers(&self, servers: &str) -> Result<()> {
        let target = ConnectString::parse(servers)?;
        self.inner.check_open()?;
        let mut result = Ok(());
        self.inner.shell.update_engine(|engine, now| result = engine.set_servers(now, target))?;
        result
    }

    /// Creates a mutex on a path, for example `/locks/nightly-report`. The mutex is re-entrant, and each owner has its
    /// own hold. The mutex uses the same znodes as Curator's `InterProcessMutex`. The call sends nothing to a server.
    ///
    /// Fails with INVALID if the path is not valid. Other errors: CLOSED, FORKED.
    pub fn mutex(&self, path: &str) -> Result<Lock> {
        self.new_lock(path, Recipe::Queue(Mode::Mutex))
    }

    /// Creates a semaphore mutex on a path. A semaphore mutex is not re-entrant, and any owner may release it. The
    /// semaphore mutex uses the same znodes as Curator's `InterProcessSemaphoreMutex`. If the holder acquires the lock
    /// a second time, the second call waits until another thread releases the lock. The call sends nothing to a server.
    ///
    /// Fails with the same errors as [`mutex`](Self::mutex).
    pub fn semaphore_mutex(&self, path: &str) -> Result<Lock> {
        self.new_lock(path, Recipe::SemaphoreMutex)
    }

    /// Creates a read/write lock on a path. Returns its read lock and its write lock. Any number of readers can hold
    /// the read lock at the same time. While a writer holds the write lock, no other owner holds either lock. Both
    /// locks use the same znodes as Curator's `InterProcessReadWriteLock` in version 5.5 and later. The call sends
    /// nothing to a server.
    ///
    /// Each lock is re-entrant, and each owner has its own holds. An owner of the write lock may also acquire the read
    /// lock. An owner that holds both locks and releases only the write lock keeps the read lock. No other owner can
    /// then acquire the write lock until this owner also releases the read lock. If an owner that holds only the read
    /// lock tries to acquire the write lock, the acquire fails with DEADLOCK.
    ///
    /// Fails with the same errors as [`mutex`](Self::mutex).
    pub fn rwlock(&self, path: &str) -> Result<RwLock> {
        let lock = |mode| self.new_lock(path, Recipe::Queue(mode));
        Ok(RwLock { read: lock(Mode::Read)?, write: lock(Mode::Write)? })
    }

    /// Creates a semaphore with `max_leases` leases on a path. The semaphore uses the same znodes as Curator's
    /// `InterProcessSemaphoreV2`. All programs that use the semaphore must set the same number of leases. The call
    /// sends nothing to a server.
    ///
    /// Fails with INVALID if the path is not valid or `max_leases` is below 1. Other errors: CLOSED, FORKED.
    pub fn semaphore(&self, path: &str, max_leases: i32) -> Result<Semaphore> {
        path::validate(path)?;
        if max_leases < 1 {
            return Err(Error::invalid(format!("max_leases is {max_leases}; expected 1 or more")));
        }
        Ok(Semaphore::new(ClientLock::new(Arc::clone(&self.inner), path, Recipe::Semaphore(max_leases))?))
    }

    /// Creates a semaphore whose number of leases is the shared count at `count_path`. When the count changes, the
    /// semaphore adopts the new value ([`shared_count_set`](Self::shared_count_set), Curator's `SharedCount`). If the
    /// shared count has no node yet, the call creates the node with the value `initial`. If the count decreases, owners
    /// keep the leases that they hold.
    ///
    /// Fails with INVALID if a path is not valid or `initial` is negative. Other errors: CONNECTION, AUTH, DENIED,
    /// SERVER, EXHAUSTED, CLOSED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn semaphore_counted(&self, path: &str, count_path: &str, initial: i32) -> Result<Semaphore> {
        self.start_semaphore_counted(path, count_path, initial)?.wait()
    }

    /// Starts creating a semaphore without blocking. In all other respects, this method works like
    /// [`semaphore_counted`](Self::semaphore_counted).
    pub fn start_semaphore_counted(&self, path: &str, count_path: &str, initial: i32) -> Result<Operation<Semaphore>> {
        path::validate(path)?;
        path::validate(count_path)?;
        validate_initial(initial)?;
        let (client, path, count) = (self.clone(), path.to_owned(), Box::<str>::from(count_path));
        self.start_node_request(NodeRequest::CreateCount { path: count_path.to_owned(), value: initial }, move |_| {
            let recipe = Recipe::CountedSemaphore { count_path: count.clone(), initial };
            Ok(Semaphore::new(ClientLock::new(Arc::clone(&client.inner), &path, recipe)?))
        })
    }

    /// Creates a semaphore like [`semaphore_counted`](Self::semaphore_counted), but does not wait until the node of the
    /// shared count exists. If the node does not exist yet, an acquire can succeed only after the library has created
    /// it.
    pub(crate) fn semaphore_counted_nowait(&self, path: &str, count_path: &str, initial: i32) -> Result<Semaphore> {
        path::validate(path)?;
        path::validate(count_path)?;
        validate_initial(initial)?;
        // Dropping the operation does not end its request. If the request fails, a later acquire creates the node of the
        // shared count.
        drop(self.start_node_request(
            NodeRequest::CreateCount { path: count_path.to_owned(), value: initial },
            |_| Ok(()),
        )?);
        let recipe = Recipe::CountedSemaphore { count_path: count_path.into(), initial };
        Ok(Semaphore::new(ClientLock::new(Arc::clone(&self.inner), path, recipe)?))
    }

    /// Starts reading a shared count without blocking. In all other respects, this method works like
    /// [`shared_count_get`](Self::shared_count_get).
    pub fn start_shared_count_get(&self, path: &str) -> Result<Operation<i32>> {
        path::validate(path)?;
        self.start_node_request(NodeRequest::GetCount { path: path.to_owned() }, |answer| match answer {
            Answer::Count(value) => Ok(value),
            _ => Err(Status::Internal.into()),
        })
    }

    /// Starts setting a shared count, without blocking. In all other respects, this method works like
    /// [`shared_count_set`](Self::shared_count_set).
    pub fn start_shared_count_set(&self, path: &str, value: i32) -> Result<Operation<()>> {
        path::validate(path)?;
        self.start_node_request(NodeRequest::SetCount { path: path.to_owned(), value }, |_| Ok(()))
    }

    /// Starts a revocation request, without waiting for the server. In all other respects, this method works like
    /// [`revoke`](Self::revoke).
    pub fn start_revoke(&self, node_path: &str) -> Result<Operation<()>> {
        path::validate(node_path)?;
        self.start_node_request(NodeRequest::Revoke { path: node_path.to_owned() }, |_| Ok(()))
    }

    /// Asks the ensemble whether the hold with this fencing token still exists on a path. The hold can belong to any
    /// zklock or Curator client. The lock can be a mutex, a read/write lock (even one with several readers), a semaphore,
    /// a semaphore mutex, or a member lock of a multi-lock. If the token belongs to a waiter, the result is false. If the
    /// token belongs to leases, the result is true only after the owner of the leases has left the inner mutex of the
    /// semaphore.
    ///
    /// The result was correct at some moment after the call began, even if the client's server lags behind the other
    /// servers. However, the hold may have ended before the program reads the result. The protected data store must
    /// therefore still compare the fencing tokens of all writes. A program that asks about its own hold should call
    /// [`Lock::is_held`] instead. [`Lock::is_held`] sends no request and takes the session lease into account.
    /// `fence_check`, in contrast, returns true as long as the node of the hold exists.
    ///
    /// Fails with INVALID if the path is not valid or the token is below 1. Other errors: CONNECTION, AUTH, DENIED,
    /// SERVER, EXHAUSTED, CLOSED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn fence_check(&self, path: &str, token: i64) -> Result<bool> {
        self.start_fence_check(path, token)?.wait()
    }

    /// Starts checking a fencing token without blocking. In all other respects, this method works like
    /// [`fence_check`](Self::fence_check). If the program drops the returned [`Operation`], the library still completes
    /// the check.
    pub fn start_fence_check(&self, path: &str, token: i64) -> Result<Operation<bool>> {
        path::validate(path)?;
        if token < 1 {
            return Err(Error::invalid(format!("token is {token}; expected 1 or more")));
        }
        self.inner.check_open()?;
        let pending = self.inner.start_op(|engine, now| engine.fence_check(now, path, token))?;
        let take = |answers: Vec<Answer>| match answers.into_iter().next() {
            Some(Answer::Holds(holds)) => Ok(holds),
            _ => Err(Status::Internal.into()),
        };
        Ok(Request::new(vec![pending], take).into_operation())
    }

    /// Reads a shared count (Curator's `SharedCount`). The node contains the count as four bytes in big-endian order.
    ///
    /// Fails with SERVER if the count has no node. Fails with INVALID if the path is not valid or the node does not
    /// contain a count. Other errors: CONNECTION, AUTH, DENIED, EXHAUSTED, CLOSED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn shared_count_get(&self, path: &str) -> Result<i32> {
        self.start_shared_count_get(path)?.wait()
    }

    /// Sets a shared count to a new value, and creates the node of the count if the node does not exist. All semaphores
    /// that use this count adopt the new value.
    ///
    /// Fails with INVALID if the path is not valid. Other errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED,
    /// FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn shared_count_set(&self, path: &str, value: i32) -> Result<()> {
        self.start_shared_count_set(path, value)?.wait()
    }

    /// Reads a node. Returns `None` if the node does not exist. After an acquire, the result is at least as recent as
    /// every write that an earlier holder made with [`write_node`](Self::write_node).
    ///
    /// Fails with INVALID if the path is not valid. Other errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED,
    /// FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn read_node(&self, path: &str) -> Result<Option<NodeContent>> {
        self.start_read_node(path)?.wait()
    }

    /// Starts reading a node, without waiting for the server. In all other respects, this method works like
    /// [`read_node`](Self::read_node).
    pub fn start_read_node(&self, path: &str) -> Result<Operation<Option<NodeContent>>> {
        path::validate(path)?;
        self.start_node_request(NodeRequest::Read { path: path.to_owned() }, |answer| match answer {
            Answer::Content(content) => Ok(content),
            _ => Err(Status::Internal.into()),
        })
    }

    /// Writes a node's data on behalf of the holder of a lock. `hold_node` is a path that [`Lock::node_paths`]
    /// returned. The ensemble performs the write only if the node `hold_node` exists, so a program that has lost its
    /// hold cannot write. `version` is the version that the node must have, or `None` if the call must create the node.
    /// The parent of the node must exist.
    ///
    /// Returns the new version. Returns `None` if the version of the node differs from `version`. If `version` is
    /// `None` and the node already exists, the call also returns `None`. The result is also `None` if `version` is a
    /// number and the node is missing. If the connection was lost during the write, the client reads the node and
    /// compares the data. Two writes with different meanings must therefore have different data.
    ///
    /// Fails with LOST if the node of the hold does not exist. Fails with INVALID if a path is not valid or `data` is
    /// longer than [`MAX_DATA`](crate::MAX_DATA). Other errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED,
    /// FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn write_node(&self, hold_node: &str, path: &str, data: &[u8], version: Option<i32>) -> Result<Option<i32>> {
        self.start_write_node(hold_node, path, data, version)?.wait()
    }

    /// Starts writing a node, without waiting for the server. In all other respects, this method works like
    /// [`write_node`](Self::write_node).
    pub fn start_write_node(
        &self,
        hold_node: &str,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> Result<Operation<Option<i32>>> {
        path::validate(hold_node)?;
        path::validate(path)?;
        if data.len() > MAX_DATA {
            let length = data.len();
            return Err(Error::invalid(format!("data of {length} bytes: at most {MAX_DATA} are allowed")));
        }
        let (path, hold_node) = (path.to_owned(), hold_node.to_owned());
        let request = NodeRequest::Write { path, data: data.to_vec(), version, hold_node };
        self.start_node_request(request, |answer| match answer {
            Answer::Written(version) => Ok(version),
            _ => Err(Status::Internal.into()),
        })
    }

    /// Deletes a node that has no children, for example the node of a participant that no longer responds. If the call
    /// deletes the node of a holder, the holder loses its hold, but continues its work until it notices the loss. The
    /// call also succeeds if the node does not exist.
    ///
    /// Fails with INVALID if the path is not valid. Fails with SERVER if the node has children. Other errors:
    /// CONNECTION, AUTH, DENIED, EXHAUSTED, CLOSED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn delete_node(&self, path: &str) -> Result<()> {
        self.start_delete_node(path)?.wait()
    }

    /// Starts deleting a node without blocking. In all other respects, this method works like
    /// [`delete_node`](Self::delete_node).
    pub fn start_delete_node(&self, path: &str) -> Result<Operation<()>> {
        path::validate(path)?;
        self.start_node_request(NodeRequest::Delete { path: path.to_owned() }, |_| Ok(()))
    }

    /// Lists the children of a node. Returns `None` if the node does not exist. The path `/` is the root, or the chroot
    /// of the client.
    ///
    /// Fails with INVALID if the path is not valid. Other errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED,
    /// FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn children(&self, path: &str) -> Result<Option<Children>> {
        self.start_children(path)?.wait()
    }

    /// Starts listing the children of a node without blocking. In all other respects, this method works like
    /// [`children`](Self::children).
    pub fn start_children(&self, path: &str) -> Result<Operation<Option<Children>>> {
        path::validate_directory(path)?;
        self.start_node_request(NodeRequest::List { path: path.to_owned() }, take_children)
    }

    /// Starts a wait that ends when a node's children differ from an earlier list. The result of the returned
    /// [`Operation`] is the new list. `zxid` is [`Children::zxid`] of the earlier list. The call sets a watch on the node
    /// and does not poll. Returns `None` if the node does not exist. If `timeout` is `None`, the call waits without a limit. If
    /// the program drops the operation, the client keeps the watch until the operation would have ended.
    ///
    /// Fails with TIMEOUT if nothing has changed within `timeout`. Fails with INVALID if the path is not valid. In a
    /// handler, [`Operation::wait`] and [`Operation::wait_for`] fail with DEADLOCK unless the operation has ended. Other
    /// errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED, FORKED.
    pub fn start_await_children(
        &self,
        path: &str,
        zxid: i64,
        timeout: Option<Duration>,
    ) -> Result<Operation<Option<Children>>> {
        path::validate_directory(path)?;
        self.inner.check_open()?;
        let deadline = timeout.map(|timeout| now() + timeout);
        let start = |engine: &mut Engine, now| engine.await_children(now, path, zxid, deadline);
        let pending = PendingOp::start(&self.inner.shell, deadline, start)?;
        let take = |answers: Vec<Answer>| take_children(answers.into_iter().next().unwrap_or(Answer::Done));
        Ok(Request::new(vec![pending], take).waiting_for_others().into_operation())
    }

    /// Checks whether the servers permit this client to perform an operation on an existing node. The check changes no
    /// node. The client sends a transaction that always fails, and the error shows whether the permission is missing.
    /// For [`Permission::Create`], the access control list that the client sets on its lock nodes must be valid too.
    ///
    /// Fails with SERVER if the node does not exist, except for [`Permission::Delete`]. Fails with INVALID if the path
    /// or the access control list is not valid. Other errors: CONNECTION, AUTH, EXHAUSTED, CLOSED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn check_permission(&self, path: &str, permission: Permission) -> Result<bool> {
        self.start_check_permission(path, permission)?.wait()
    }

    /// Starts checking a permission, without blocking. In all other respects, this method works like
    /// [`check_permission`](Self::check_permission).
    pub fn start_check_permission(&self, path: &str, permission: Permission) -> Result<Operation<bool>> {
        path::validate_directory(path)?;
        let request = NodeRequest::CheckPermission { path: path.to_owned(), permission };
        self.start_node_request(request, |answer| match answer {
            Answer::Allowed(is_allowed) => Ok(is_allowed),
            _ => Err(Status::Internal.into()),
        })
    }

    /// Returns the lock nodes among the children of a directory, in the order of their queue. The result contains the
    /// nodes of all lock families that the library supports. Sends no request and does not block.
    ///
    /// Errors: FORKED.
    pub fn order_queue<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<Vec<QueueNode>> {
        self.inner.shell.read_engine(|engine, _| engine.order_queue(names))
    }

    /// Asks the owner of a node to release the lock or the lease, or to stop waiting. `node_path` is a path that
    /// [`Lock::participants`] returned. The owner of the node receives the request only if the owner has set a handler
    /// ([`Lock::set_revocable`], Curator's `makeRevocable`). The owner decides whether to release. The call also
    /// succeeds if the node no longer exists.
    ///
    /// Fails with INVALID if the path is not valid. Other errors: CONNECTION, AUTH, DENIED, SERVER, EXHAUSTED, CLOSED,
    /// FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub fn revoke(&self, node_path: &str) -> Result<()> {
        self.start_revoke(node_path)?.wait()
    }

    fn new_lock(&self, path: &str, recipe: Recipe) -> Result<Lock> {
        path::validate(path)?;
        Lock::new(Arc::clone(&self.inner), path, recipe)
    }

    /// Returns the identities that a server knows for this client, each in the form `scheme:id`. A server before version
    /// 3.7 does not support the request, and ends the session. Errors: UNSUPPORTED, CONNECTION, AUTH, CLOSED, FORKED.
    ///
    /// Blocks for at most the session timeout.
    pub(crate) fn identities(&self) -> Result<Vec<String>> {
        let take = |answer| match answer {
            Answer::Identities(identities) => Ok(identities),
            _ => Err(Status::Internal.into()),
        };
        self.start_node_request(NodeRequest::Identities, take)?.wait()
    }

    fn start_node_request<T>(
        &self,
        task: NodeRequest,
        take: impl Fn(Answer) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Operation<T>> {
        self.inner.check_open()?;
        let pending = self.inner.start_op(|engine, now| engine.start_node_request(now, task))?;
        let take = move |answers: Vec<Answer>| take(answers.into_iter().next().unwrap_or(Answer::Done));
        Ok(Request::new(vec![pending], take).into_operation())
    }

    /// Returns the state of the session. Does not block.
    pub fn state(&self) -> Result<ClientState> {
        self.inner.shell.read_engine(|engine, _| engine.state())
    }

    /// Returns the session id, which the servers also write to their logs. Returns 0 if the client has no session. The
    /// id may be negative. Does not block.
    pub fn session_id(&self) -> Result<i64> {
        self.inner.shell.read_engine(|engine, _| engine.session_id())
    }

    /// Returns the session timeout that the servers have negotiated. Does not block.
    pub fn session_timeout(&self) -> Result<Duration> {
        self.inner.shell.read_engine(|engine, _| engine.session_timeout())
    }

    /// Returns the length of the session lease. A hold remains safe for at most this time after the client's last
    /// confirmed request. The length is the session timeout minus the lease margin, and at least a third of the session
    /// timeout. While the program holds a lock, the client extends the session lease six times in each session timeout.
    /// If the client has no session at this moment, the result applies to the requested session timeout. Does not
    /// block.
    pub fn lease_length(&self) -> Result<Duration> {
        self.inner.shell.read_engine(|engine, _| engine.lease_length())
    }

    /// Calls `handler` for every later change of the session and of all holds, and for earlier changes that are still
    /// queued. The library stops calling the handler when the [`Listener`] is dropped. The rules of
    /// [`Config::on_event`] apply to these calls of the handler. A client can have any number of listeners.
    ///
    /// Errors: CLOSED, FORKED, EXHAUSTED.
    pub fn listen(&self, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Listener> {
        self.add_listener(&(Arc::new(handler) as Arc<EventHandler>))
    }

    /// Sets a handler that receives the same events as a [`listen`](Self::listen) handler. A later call replaces the
    /// handler. The argument `None` removes the handler. The handler of the config and all listeners still receive
    /// their events.
    ///
    /// When this method returns, the previous handler is not running on another thread, and the library does not call
    /// it again. If the previous handler is running, the method therefore waits until the handler returns. If the
    /// previous handler itself calls this method, the method does not wait.
    ///
    /// Errors: CLOSED, FORKED, EXHAUSTED.
    pub fn set_event_handler(&self, handler: Option<Box<EventHandler>>) -> Result<()> {
        self.inner.check_open()?;
        let listener = handler.map(|handler| self.add_listener(&Arc::from(handler))).transpose()?;
        self.inner.on_event.set(listener);
        Ok(())
    }

    fn add_listener(&self, handler: &Arc<EventHandler>) -> Result<Listener> {
        self.inner.check_open()?;
        let place = self.inner.shell.event_delivery().map(|delivery| (delivery, Scope::Client));
        Listener::register(handler, Listen::All, std::iter::once(place))
    }

    /// Returns the current counters, histograms and gauges of this client. The call sends no request. The call succeeds
    /// even after the session was lost or the client was closed. [`Metrics::prometheus`] converts the metrics to text.
    ///
    /// Errors: FORKED. Does not block.
    pub fn metrics(&self) -> Result<Metrics> {
        self.inner.shell.read_engine(|engine, _| engine.metrics())
    }

    /// Delivers the queued events and revocation requests. The handlers of these events run on the calling thread, in
    /// the order in which the events occurred. Events that the client queues during this call stay in the queue until
    /// the next call. Returns the number of delivered events and revocation requests. Each event or request counts
    /// once, even if several handlers receive it.
    ///
    /// Only one thread at a time delivers the events of a client. If another thread is already delivering events of the
    /// client, this method delivers nothing and returns 0. The method also returns 0 if a handler of the client calls
    /// it.
    ///
    /// Fails with INVALID if [`Config::poll_events`] is off. Other errors: CLOSED, FORKED. Blocks while the handlers
    /// run.
    pub fn dispatch_events(&self) -> Result<usize> {
        let delivery = self.inner.shell.event_delivery()?;
        delivery.check_polling()?;
        Ok(delivery.dispatch(usize::MAX))
    }

    /// Returns a descriptor for `poll`, `select`, epoll and event loops. The descriptor is readable while events or
    /// revocation requests are queued, and becomes readable when the client is closed. The descriptor belongs to the
    /// library, so the program must not read, write or close it. When the client is closed, the library closes the
    /// descriptor, and epoll then removes the descriptor from its set. If one thread may close the client while another
    /// thread polls the descriptor, the polling thread must poll a duplicate of the descriptor.
    ///
    /// Fails with the same errors as [`dispatch_events`](Self::dispatch_events). Does not block.
    pub fn event_fd(&self) -> Result<RawFd> {
        self.inner.shell.event_delivery()?.poll_fd()
    }

    /// Returns the event source of this client, which the notifier of the config also receives.
    pub(crate) fn event_source(&self) -> Result<EventSource> {
        Ok(self.inner.shell.event_delivery()?.source())
    }

    /// Removes all handlers of the client, so that a later close does not wait for the handlers. A binding calls this
    /// method before it closes the client, if the program can no longer run handlers.
    pub(crate) fn discard_handlers(&self) -> Result<()> {
        self.inner.shell.event_delivery()?.discard_handlers();
        Ok(())
    }

    /// Removes all handlers of the client, and then closes the client in the background.
    pub(crate) fn close_nowait(&self) -> Result<()> {
        self.discard_handlers()?;
        self.inner.close_nowait()
    }

    /// Returns a weak reference. A weak reference does not keep the client open.
    pub fn downgrade(&self) -> WeakClient {
        WeakClient { inner: Arc::downgrade(&self.inner) }
    }

    /// Ends the session and closes the client. All holds of the client end. Calls that wait for a lock of the client
    /// fail with CLOSED. Later calls on the client or its locks also fail with CLOSED.
    ///
    /// The client first delivers its queued events. If the time limit of this method passes before the delivery ends,
    /// the client drops the remaining events. If the program polls this client for events, `close` delivers them on the
    /// calling thread. After this method has returned, the library no longer calls the client's handlers. If one of the
    /// handlers is running on another thread, this method waits without a time limit until the handler returns. If a
    /// handler closes its own client, this method does not wait for that handler.
    ///
    /// Blocks until the server has confirmed the end of the session and the last handler has returned. The method waits
    /// at most a third of the session timeout for the confirmation, and never more than two seconds. If no confirmation
    /// arrives in this time, the method also returns `Ok`, and the nodes of the client can exist until the session
    /// expires. If another thread is already closing the client, the method waits at most two seconds for that thread,
    /// and without a time limit for a handler that is running.
    pub fn close(&self) -> Result<()> {
        self.inner.close()
    }

    /// Closes the client as [`close`](Self::close) does, but without blocking. When this method returns, the locks of
    /// the client can no longer be used. A new thread ends the session. The operation then ends with the result that
    /// `close` would have returned, also if the program has dropped the [`Operation`]. If the program polls this client
    /// for events, the library itself calls no handlers. The program must then continue to dispatch events until the
    /// operation has ended. If the thread cannot start, the call fails with EXHAUSTED, and the client stays open.
    pub fn start_close(&self) -> Result<Operation<()>> {
        let closed = Arc::new(Completion::default());
        let closing = Closing { closed: Arc::clone(&closed), epoch: ForkEpoch::current() };
        self.inner.close_in_background(move |result| _ = closed.complete(result))?;
        Ok(Operation::new(closing))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("servers", &self.inner.servers()).finish_non_exhaustive()
    }
}

fn take_children(answer: Answer) -> Result<Option<Children>> {
    match answer {
        Answer::Children(children) => Ok(children),
        _ => Err(Status::Internal.into()),
    }
}

/// The initial value of a shared count must not be negative, although a later change can set any number.
fn validate_initial(initial: i32) -> Result<()> {
    if initial < 0 {
        return Err(Error::invalid(format!("initial is {initial}; expected 0 or more")));
    }
    Ok(())
}

/// The two locks of a read/write lock ([`Client::rwlock`]).
#[derive(Debug, Clone)]
pub struct RwLock {
    /// The read lock. Any number of readers can hold the read lock at the same time.
    pub read: Lock,
    /// The write lock. While a writer holds the write lock, no other owner holds either lock.
    pub write: Lock,
}

/// A weak reference to a client ([`Client::downgrade`]). A weak reference does not keep the client open.
#[derive(Clone)]
pub struct WeakClient {
    inner: Weak<ClientInner>,
}

impl fmt::Debug for WeakClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakClient").finish_non_exhaustive()
    }
}

impl WeakClient {
    /// Returns whether the program still uses the client, or any of its locks, semaphores or leases. Unlike `upgrade`,
    /// this method creates no reference to the client. Such a reference could become the last one, and the caller would
    /// then close the client.
    pub(crate) fn has_users(&self) -> bool {
        self.inner.strong_count() > 0
    }

    /// Returns the client, or `None` if the program has dropped all objects that use the client.
    pub fn upgrade(&self) -> Option<Client> {
        self.inner.upgrade().map(|inner| Client { inner })
    }
}

/// The work of an attempt to connect for the first time. If the program drops the last object that uses the client, the
/// client stops connecting.
struct Connecting {
    client: Client,
    pending: PendingOp,
    /// The `tracing` span of the attempt to connect.
    span: Span,
}

impl Connecting {
    /// Ends the attempt, unless it has already ended. The client then closes in the background.
    fn give_up(&self, error: Error) -> Result<()> {
        if self.pending.give_up(error) { self.client.close_nowait() } else { self.client.inner.shell.check_process() }
    }
}

impl InProgress<Client> for Connecting {
    fn wait_for(&self, slice: Duration) -> Option<Result<Client>> {
        let answer = self.pending.wait_for(slice)?;
        span::record_outcome(&self.span, &answer);
        Some(answer.map(|_| self.client.clone()))
    }

    fn is_over(&self) -> bool {
        self.pending.is_over()
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        self.pending.on_done(hook)
    }

    fn cancel(&self) -> Result<()> {
        let error = self.client.inner.shell.read_engine(Engine::canceled_connect_error);
        self.give_up(error.unwrap_or_else(|error| error))
    }

    fn abandon(&self) {
        // In a forked child, the attempt has already ended.
        let _ = self.give_up(Status::Closed.into());
    }
}

/// The work of closing a client.
struct Closing {
    closed: Arc<Completion<Option<Result<()>>>>,
    epoch: ForkEpoch,
}

impl InProgress<()> for Closing {
    fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        self.epoch.check().map_or_else(|forked| Some(Err(forked)), |()| self.closed.wait_for(slice))
    }

    fn is_over(&self) -> bool {
        self.epoch.check().is_err() || self.closed.has_ended()
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        self.epoch.check()?;
        self.closed.on_done(hook);
        Ok(())
    }

    fn cancel(&self) -> Result<()> {
        self.epoch.check()
    }

    fn abandon(&self) {
        if self.epoch.check().is_ok() {
            self.closed.complete(Err(Status::Closed.into()));
        }
    }
}
