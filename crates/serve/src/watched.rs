//! The I/O of a connection, on its way to the HTTP library: what is read and written is noted in [`Conn`], and frames of HTTP/2 that
//! open streams or say how urgent they are are looked at before the library has them.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use upshift::hyper::Io;

use crate::connection::Conn;
use crate::frames::{Frames, Heard};
use crate::priority::Urgency;
use crate::shared::Shared;
use crate::streams::Streams;

/// What is read of HTTP/2 between two looks at the clock: 455 frames at most.
const PIECE: usize = 4096;

/// What is received, lent.
pub(crate) trait Fill {
    /// May more be read in this poll?
    fn poll_read_on(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Waits for bytes; none is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>>;
    /// So many of them are done with.
    fn consume(&mut self, count: usize);
}

impl Fill for Io {
    fn poll_read_on(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Io::poll_read_on(self, cx)
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Io::poll_fill(self, cx)
    }

    fn consume(&mut self, count: usize) {
        Io::consume(self, count);
    }
}

/// A connection's I/O, watched.
pub(crate) struct Watched<I> {
    io: I,
    conn: Arc<Conn>,
    /// Of HTTP/2.
    two: Option<Box<Two>>,
}

struct Two {
    shared: Arc<Shared>,
    frames: Frames,
    /// A request has been received that is to be handed out before anything else is read.
    stop: bool,
}

impl<I> Watched<I> {
    pub(crate) fn one(io: I, conn: Arc<Conn>) -> Watched<I> {
        Watched {
            io,
            conn,
            two: None,
        }
    }

    pub(crate) fn two(io: I, conn: Arc<Conn>, shared: Arc<Shared>) -> Watched<I> {
        let two = Two {
            shared,
            frames: Frames::new(),
            stop: false,
        };
        Watched {
            io,
            conn,
            two: Some(Box::new(two)),
        }
    }
}

impl Two {
    /// Passes on what has come, and takes note.
    fn read<I: Fill>(
        &mut self,
        io: &mut I,
        conn: &Conn,
        cx: &mut Context<'_>,
        room: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let streams = &conn.streams;
        // The library reads on, so it has handed out what there was.
        streams.stopped.store(false, Relaxed);
        if mem::take(&mut self.stop) {
            streams.stopped.store(true, Relaxed);
            return Poll::Pending;
        }
        ready!(io.poll_read_on(cx));
        let data = ready!(io.poll_fill(cx))?;
        let data = &data[..data.len().min(room.remaining()).min(PIECE)];
        let mut flood = false;
        let count = self.frames.look(data, |heard| match heard {
            Heard::Opened(number) => {
                streams.opened(number);
                self.stop = true;
            }
            Heard::Update(number, field) => update(&self.shared, streams, number, field),
            Heard::Flood => flood = true,
        });
        if flood {
            let why = "requests are given up as fast as they are made";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        room.put_slice(&data[..count]);
        io.consume(count);
        Poll::Ready(Ok(()))
    }
}

/// The client says how urgent a stream is: its request gets the level that follows from it, or it is kept until the request comes.
fn update(shared: &Shared, streams: &Streams, number: u32, field: &[u8]) {
    let Ok(field) = str::from_utf8(field) else {
        return;
    };
    let urgency = Urgency::parse(field);
    if let Some((place, entry)) = streams.update(number, urgency) {
        let live = shared.live();
        let urgency = live.granted(urgency);
        entry.asks(urgency, urgency.level());
        let level = live.rule_again(&entry.facts).unwrap_or(urgency.level());
        shared
            .in_flight
            .reprio_one(&shared.runtime, place, &entry, level);
    }
}

impl<I: Read + Fill + Unpin> Read for Watched<I> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(two) = &mut this.two {
            return two.read(&mut this.io, &this.conn, cx, &mut room);
        }
        let result = Pin::new(&mut self.io).poll_read(cx, room);
        if matches!(result, Poll::Ready(Ok(()))) {
            self.conn.received();
        }
        result
    }
}

impl<I> Watched<I> {
    #[inline]
    fn has_written(&self, result: &Poll<io::Result<usize>>) {
        self.conn.wrote(result.is_pending());
        if let (Some(_), Poll::Ready(Ok(bytes))) = (&self.two, result) {
            self.conn.sending.wrote(*bytes);
        }
    }
}

impl<I: Write + Unpin> Write for Watched<I> {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.has_written(&result);
        result
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, pieces);
        self.has_written(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_flush(cx);
        self.conn.wrote(result.is_pending());
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_shutdown(cx);
        self.conn.wrote(result.is_pending());
        result
    }
}
