//! Sends requests from rank to rank. A request carries its level (its urgency), and its handler on
//! the other rank runs at this level.
//!
//! ```text
//!   call_at(rank, level, body)                  acceptor, level 0: probes, does not receive
//!        │ tag = level                              │ a coroutine of that level per message
//!        └────────────── service ───────────────►   ├─ waits for one of the level's permits
//!   call's future ◄───── replies ───────────────    └─ handler ─► reply, at the same level
//! ```
//!
//! The acceptor's work per message is bounded, because the tag contains the level, and a separate
//! coroutine receives the body. So an urgent request overtakes batch requests in all queues of the
//! ranks, and waits for at most one poll of another coroutine. It cannot overtake messages that MPI
//! has already put on the wire.
//!
//! At most [`MAX_HANDLERS`] handlers per level run at a time. Further messages of the level stay in
//! MPI, which keeps the bodies of long messages at the sender.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use upshift::sync::{Semaphore, oneshot};
use upshift::{JoinHandle, LEVELS, Level, no_suspend, spawn};

use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::job::waiter_level;
use crate::operation::Operation;
use crate::point::{Message, Source, Tag};

/// Maximum number of handlers of a level that run at the same time on a rank.
pub const MAX_HANDLERS: usize = 256;

/// Size in bytes of the trailer after the body. The trailer contains the id of the call, or 0 if no
/// reply is expected.
const TRAILER: usize = 8;
/// Number of bits of a tag that contain the level; the next bits contain the kind.
const LEVEL_BITS: u16 = 6;
/// Kind of a request, and of a reply with the output of the handler.
const NORMAL: u16 = 0;
/// Kind of a reply after the handler has panicked.
const FAILED: u16 = 1;

/// All ranks of the job, and the requests between them.
#[derive(Clone)]
pub struct World {
    inner: Arc<Inner>,
}

struct Inner {
    comm: Comm,
    service: Comm,
    replies: Comm,
    permits: Vec<Semaphore>,
    /// Id of the next call.
    next_call: AtomicU64,
    calls: Mutex<Calls>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

/// The calls of this rank that have no reply yet.
#[derive(Default)]
struct Calls {
    waiting: HashMap<u64, oneshot::Sender<Result<Vec<u8>>>>,
    /// Number of replies that have yet to arrive, without the one that `receive_replies` awaits.
    due: usize,
    /// Set while a coroutine receives replies.
    is_receiving: bool,
}

/// A request of another rank, or of this one.
#[derive(Debug)]
pub struct Request {
    /// The rank that sent the request.
    pub source: usize,
    /// The level of the request, at which the handler runs.
    pub level: Level,
    /// The id of the request on the rank that sent it, or 0 if it expects no reply.
    pub id: u64,
    /// The content of the request.
    pub body: Vec<u8>,
}

type Handler = dyn Fn(Request) -> Pin<Box<dyn Future<Output = Vec<u8>> + Send>> + Send + Sync;

impl World {
    pub(crate) fn new(comm: Comm, service: Comm, replies: Comm) -> World {
        World {
            inner: Arc::new(Inner {
                comm,
                service,
                replies,
                permits: (0..LEVELS).map(|_| Semaphore::new(MAX_HANDLERS)).collect(),
                next_call: AtomicU64::new(1),
                calls: Mutex::default(),
                acceptor: Mutex::default(),
            }),
        }
    }

    /// Returns the communicator of all ranks.
    #[must_use]
    pub fn comm(&self) -> &Comm {
        &self.inner.comm
    }

    pub(crate) fn service(&self) -> &Comm {
        &self.inner.service
    }

    /// Returns the index of this rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.comm.rank()
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.comm.size()
    }

    /// If a rank has died, returns the error that names it. The job is then about to end.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let death = self.inner.comm.job().death()?;
        Some(Error::Died(death.clone()))
    }

    /// Records the level-0 request that begins on this rank. If the rank dies, the message that
    /// reports its death names the request. [`serve`](Self::serve) calls this function. At most 192
    /// bytes are kept.
    pub fn note_urgent(&self, request: &str) {
        no_suspend(|| self.inner.comm.job().node.record_request(request));
    }

    /// Runs `handler` for every request to this rank, at the request's level. Its output is the
    /// reply.
    ///
    /// Requests wait until this function is called. A second handler replaces the first for later
    /// requests.
    pub fn serve<F>(&self, handler: impl Fn(Request) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        let handler: Arc<Handler> = Arc::new(move |request| Box::pin(handler(request)));
        let acceptor = spawn(self.clone().accept(handler), Level::at::<0>());
        if let Some(old) = lock(&self.inner.acceptor).replace(acceptor) {
            old.cancel();
        }
    }

    async fn accept(self, handler: Arc<Handler>) {
        while let Ok(message) = self.inner.service.improbe(Source::Any, Tag::Any).await {
            let level = level_of(message.tag());
            let (world, handler) = (self.clone(), handler.clone());
            spawn(
                async move {
                    // An error means that the job ends, which all waiters learn independently.
                    let _ = world.handle(message, level, &*handler).await;
                },
                level,
            )
            .detach();
        }
    }

    async fn handle(&self, message: Message, level: Level, handler: &Handler) -> Result<()> {
        let permits = &self.inner.permits[usize::from(level.get())];
        let _permit = permits.acquire().await.map_err(|_| Error::Ended)?;
        let (id, body, source) = receive(message).await?;
        if level.get() == 0 {
            let text = format!("#{id} of rank {source}, {} bytes", body.len());
            self.note_urgent(&text);
        }
        let request = Request {
            source,
            level,
            id,
            body,
        };
        // The handler runs in a separate coroutine, so that a panic affects only the caller.
        let output = spawn(handler(request), level).await;
        if id == 0 {
            return Ok(());
        }
        let (kind, body) = match output {
            Ok(body) => (NORMAL, body),
            Err(_) => (FAILED, Vec::new()),
        };
        let reply = with_trailer(body, id);
        self.inner
            .replies
            .isend(reply, source, tag(kind, level))
            .await?;
        Ok(())
    }

    /// Sends a request without a reply. The operation completes when MPI no longer needs `body`.
    pub fn send_at(&self, rank: usize, level: Level, body: Vec<u8>) -> Operation<Vec<u8>> {
        let tag = tag(NORMAL, level);
        self.inner.service.isend(with_trailer(body, 0), rank, tag)
    }

    /// Sends a request like [`call_at`](Self::call_at), at the level of the calling coroutine.
    ///
    /// # Errors
    /// The errors of [`call_at`](Self::call_at).
    pub async fn call(&self, rank: usize, body: Vec<u8>) -> Result<Vec<u8>> {
        self.call_at(rank, waiter_level(), body).await
    }

    /// Sends a request, which is handled at `level` on the other rank, and returns the reply.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the request is still handled, and its reply is lost.
    ///
    /// # Errors
    /// [`Error::Handler`] if the handler panicked; errors of the job.
    pub async fn call_at(&self, rank: usize, level: Level, body: Vec<u8>) -> Result<Vec<u8>> {
        let id = self.inner.next_call.fetch_add(1, Relaxed);
        let (sender, receiver) = oneshot::channel();
        no_suspend(|| {
            let mut calls = lock(&self.inner.calls);
            calls.waiting.insert(id, sender);
            calls.due += 1;
            if !std::mem::replace(&mut calls.is_receiving, true) {
                spawn(self.clone().receive_replies(), Level::at::<0>()).detach();
            }
        });
        let sent = self
            .inner
            .service
            .isend(with_trailer(body, id), rank, tag(NORMAL, level));
        if let Err(error) = sent.await {
            no_suspend(|| {
                let mut calls = lock(&self.inner.calls);
                calls.due = calls.due.saturating_sub(1);
                calls.waiting.remove(&id)
            });
            return Err(error);
        }
        receiver
            .await
            .map_err(|_| self.failure().unwrap_or(Error::Ended))?
    }

    /// Receives replies while any reply is due.
    async fn receive_replies(self) {
        loop {
            let is_last = no_suspend(|| {
                let mut calls = lock(&self.inner.calls);
                calls.is_receiving = calls.due > 0;
                calls.due = calls.due.saturating_sub(1);
                !calls.is_receiving
            });
            if is_last {
                return;
            }
            let message = self.inner.replies.improbe(Source::Any, Tag::Any).await;
            let Ok(message) = message else {
                // Dropping the senders reports the end of the job to the callers.
                let calls = no_suspend(|| std::mem::take(&mut *lock(&self.inner.calls)));
                drop(calls);
                return;
            };
            let (world, tag) = (self.clone(), message.tag());
            spawn(
                async move {
                    if let Ok((id, body, _)) = receive(message).await {
                        let sender = no_suspend(|| lock(&world.inner.calls).waiting.remove(&id));
                        let failed = tag >> LEVEL_BITS == FAILED;
                        let result = if failed {
                            Err(Error::Handler)
                        } else {
                            Ok(body)
                        };
                        if let Some(sender) = sender {
                            // An error means that the caller has gone.
                            let _ = sender.send(result);
                        }
                    }
                },
                level_of(tag),
            )
            .detach();
        }
    }

    pub(crate) fn close(&self) {
        if let Some(acceptor) = lock(&self.inner.acceptor).take() {
            acceptor.cancel();
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.comm.fmt(f)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tag(kind: u16, level: Level) -> u16 {
    kind << LEVEL_BITS | u16::from(level.get())
}

fn level_of(tag: u16) -> Level {
    let bits = u8::try_from(tag & ((1 << LEVEL_BITS) - 1)).unwrap_or(u8::MAX);
    Level::new(bits).unwrap_or(Level::DEFAULT)
}

fn with_trailer(mut body: Vec<u8>, id: u64) -> Vec<u8> {
    body.extend_from_slice(&id.to_le_bytes());
    body
}

async fn receive(message: Message) -> Result<(u64, Vec<u8>, usize)> {
    let source = message.source();
    let mut body = message.receive::<u8>().await?.data;
    let cut = body.len().checked_sub(TRAILER).ok_or(Error::PartialItem)?;
    let (_, trailer) = body.split_at(cut);
    let id = trailer.try_into().map_or(0, u64::from_le_bytes);
    body.truncate(cut);
    Ok((id, body, source))
}
