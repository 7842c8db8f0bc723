//! The spin server: each request is a coroutine of its own, at the level it asks for.
//!
//! A connection always has one coroutine that receives, at the level of the connection. When it has a request it starts
//! its successor, which receives from then on, and serves the request itself: so a request costs one `spawn` and, if it
//! comes alone, no more turns than it needs, and however long it burns, those behind it on the connection do not wait for
//! it. Replies leave in the order of completion, each whole, by a `send` that does not wait: a coroutine whose reply went through the
//! ring would hold the lock of the connection until it is picked again, and at overload that is behind everything that waits.
//!
//! The level of a connection should be that of its most urgent requests: a request is received at the level of the
//! connection before its own is known. One of another level changes to that before it burns; a less urgent one waits its
//! turn there.
//!
//! At most [`OUTSTANDING`] requests of a connection are under way; beyond them nothing is received. A burn is one poll:
//! without preemption everything else on the vCPU waits for it.

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

/// Requests of a connection that are under way, at most.
const OUTSTANDING: usize = 256;

/// Connections closed for what they sent, so far.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// What the requests of a connection share.
struct Connection {
    output: Mutex<OwnedWriteHalf>,
    outstanding: AtomicUsize,
    /// Notified when `outstanding` falls below its bound.
    room: Notify,
    level: Level,
    peer: SocketAddr,
    burner: Burner,
}

/// What passes from one receiving coroutine to the next.
struct Receiver {
    connection: Arc<Connection>,
    input: OwnedReadHalf,
    /// Received, and not looked at yet.
    data: RecvBuf,
    frames: Frames,
}

/// Burns what is asked for.
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

/// Starts the coroutine that receives the next request.
fn receive(receiver: Receiver) {
    let level = receiver.connection.level;
    // Refused: the server ends, or is out of memory; the connection is closed.
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

/// Takes the running coroutine from one level to another; to a less urgent one it goes to the end of the queue.
async fn change_level(from: Level, to: u8) {
    if from.get() == to {
        return;
    }
    if let (Some(me), Ok(level)) = (upshift::get_cid(), Level::new(to)) {
        // It runs, so it is not dead.
        let _ = upshift::reprio(me, level);
    }
    if from.get() < to {
        upshift::yield_now().await;
    }
}

impl Receiver {
    /// The next request; none when the input has ended or is lost.
    async fn next(&mut self) -> Result<Option<Request>, String> {
        while self.connection.outstanding.load(Ordering::Relaxed) >= OUTSTANDING {
            self.connection.room.notified().await;
        }
        loop {
            let mut chunk: &[u8] = &self.data;
            let before = chunk.len();
            let found = self.frames.next(&mut chunk).map_err(|e| e.to_string())?;
            let taken = before - chunk.len();
            self.data.advance(taken);
            if found.is_some() {
                return Ok(found);
            }
            let Ok(data) = self.input.recv().await else {
                return Ok(None);
            };
            if data.is_empty() {
                return if self.frames.at_boundary() {
                    Ok(None)
                } else {
                    Err("the input ended in the middle of a frame".into())
                };
            }
            self.data = data;
        }
    }

    /// Says why nothing more is received; what was asked before is still answered.
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
            // A client that is gone is noticed by the coroutine that receives.
            let _ = AsyncWriteExt::write_all(&mut *output, &request.bytes()).await;
        }
        if self.outstanding.fetch_sub(1, Ordering::Relaxed) == OUTSTANDING {
            self.room.notify_one();
        }
    }
}
