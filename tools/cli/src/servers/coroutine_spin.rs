//! The spin server, whose requests burn CPU time: each request is a coroutine of its own, at the
//! level that the request names.
//!
//! A connection always has one coroutine that receives, at the level of the connection. When that
//! coroutine has received a request, it spawns its successor, which continues to receive. The first
//! coroutine then serves the request itself. A request thus costs one `spawn` and, if it arrives
//! alone, no additional poll. However long a request burns, later requests of the connection do not
//! wait for it. Replies leave in the order of completion, each whole, by a non-blocking `send`. A
//! reply through the ring would hold the connection's lock until the replying coroutine is polled
//! again. At overload, that happens only after all other waiting work.
//!
//! The level of a connection should be that of its most urgent requests, because a request is
//! received at the level of the connection before its own level is known. The coroutine of a
//! request of another level changes to that level before it burns. If that level is less urgent,
//! the coroutine joins the end of that level's queue.
//!
//! At most [`MAX_OUTSTANDING`] requests of a connection are in progress; the connection then stops
//! receiving. A burn is one poll, so without preemption everything else on the vCPU waits for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::Result;
use futures_lite::AsyncWriteExt;
use upshift::net::{OwnedReadHalf, OwnedWriteHalf};
use upshift::sync::{Mutex, Notify};
use upshift::{Level, RecvBuf};
use upshift_load::Burner;
use upshift_load::spin::{Frames, Request};

use super::args::ServerArgs;
use super::coroutine::{self, Client};

/// Largest number of requests in progress on a connection.
const MAX_OUTSTANDING: usize = 256;

/// Number of connections closed because of invalid input.
static REFUSED: AtomicU64 = AtomicU64::new(0);

struct Connection {
    output: Mutex<OwnedWriteHalf>,
    /// Number of requests in progress.
    outstanding: AtomicUsize,
    /// Notified when `outstanding` falls below its bound.
    room: Notify,
    level: Level,
    peer: SocketAddr,
    burner: Burner,
}

/// State that one receiving coroutine passes to the next.
struct Receiver {
    connection: Arc<Connection>,
    input: OwnedReadHalf,
    /// Received data that is not parsed yet.
    data: RecvBuf,
    frames: Frames,
}

pub(crate) fn serve(args: &ServerArgs, burner: Burner) -> Result<()> {
    coroutine::run("spin-server", args, move |client| start(client, burner))
}

fn start(client: Client, burner: Burner) {
    let (input, output) = client.stream.into_split();
    let connection = Connection {
        output: Mutex::new(output),
        outstanding: AtomicUsize::new(0),
        room: Notify::new(),
        level: client.level,
        peer: client.peer,
        burner,
    };
    receive(Receiver {
        connection: Arc::new(connection),
        input,
        data: RecvBuf::empty(),
        frames: Frames::default(),
    });
}

fn receive(receiver: Receiver) {
    let level = receiver.connection.level;
    // A refused spawn means that the server is ending or out of memory; the connection is closed.
    if let Ok(handle) = upshift::try_spawn(serve_next(receiver), level) {
        handle.detach();
    }
}

async fn serve_next(mut receiver: Receiver) {
    let request = match receiver.next().await {
        Ok(Some(request)) => request,
        Ok(None) => return,
        Err(why) => return receiver.refuse(&why).await,
    };
    let connection = receiver.connection.clone();
    connection.outstanding.fetch_add(1, Ordering::Relaxed);
    receive(receiver);
    change_level(connection.level, request.level).await;
    connection.burner.burn(request.service);
    connection.reply(&request).await;
}

/// Moves the running coroutine from one level to another. If the new level is less urgent, the
/// coroutine joins the end of that level's queue.
async fn change_level(from: Level, to: u8) {
    if from.get() == to {
        return;
    }
    if let (Some(cid), Ok(level)) = (upshift::get_cid(), Level::new(to)) {
        // The coroutine is running, so it is alive.
        let _ = upshift::reprio(cid, level);
    }
    if from.get() < to {
        upshift::yield_now().await;
    }
}

impl Receiver {
    /// Returns the next request; `None` after the end or the loss of the input.
    async fn next(&mut self) -> Result<Option<Request>, String> {
        while self.connection.outstanding.load(Ordering::Relaxed) >= MAX_OUTSTANDING {
            self.connection.room.notified().await;
        }
        loop {
            let mut chunk: &[u8] = &self.data;
            let before = chunk.len();
            let found = self.frames.next(&mut chunk).map_err(|e| e.to_string())?;
            let consumed = before - chunk.len();
            self.data.advance(consumed);
            if found.is_some() {
                return Ok(found);
            }
            let Ok(data) = self.input.recv().await else {
                return Ok(None);
            };
            if data.is_empty() {
                return if self.frames.is_at_boundary() {
                    Ok(None)
                } else {
                    Err("the input ended in the middle of a frame".into())
                };
            }
            self.data = data;
        }
    }

    /// Reports why reception ends and discards further input; earlier requests are still answered.
    async fn refuse(mut self, why: &str) {
        let count = REFUSED.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!(
            "spin-server[{}]: closed {} ({count} so far): {why}",
            std::process::id(),
            self.connection.peer
        );
        self.data = RecvBuf::empty();
        coroutine::discard(&mut self.input).await;
    }
}

impl Connection {
    async fn reply(&self, request: &Request) {
        {
            let mut output = self.output.lock().await;
            // The receiving coroutine notices a client that is gone.
            let _ = AsyncWriteExt::write_all(&mut *output, &request.bytes()).await;
        }
        if self.outstanding.fetch_sub(1, Ordering::Relaxed) == MAX_OUTSTANDING {
            self.room.notify_one();
        }
    }
}
