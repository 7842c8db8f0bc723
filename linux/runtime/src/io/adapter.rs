//! Implements the read and write traits of `futures-io` and tokio, by macros, for types that
//! implement [`Source`] or [`Sink`].
//!
//! A [`Source`] gives out references to bytes that it has read, from memory that it or the ring
//! owns; a trait's `poll_read` copies out of that memory. A [`Sink`] has taken the bytes that it
//! reports as written: into the kernel, or into a buffer of its own. Neither ever passes borrowed
//! memory to an operation. So the memory of an operation stays valid no matter how early a future
//! is dropped, and data that has arrived stays with the source.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

pub(crate) trait Source: Unpin {
    /// Returns the bytes that have been read and not consumed; waits for bytes if there are none.
    /// No bytes mean the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>>;

    /// Discards the first `count` of the bytes that [`poll_fill`](Source::poll_fill) returned.
    fn consume(&mut self, count: usize);
}

pub(crate) trait Sink: Unpin {
    /// True if [`poll_write_vectored`](Sink::poll_write_vectored) gathers buffers.
    #[allow(dead_code, reason = "only traits of optional features use it")]
    const VECTORED: bool = false;

    /// Takes a part of `bytes`, and returns the length of the part.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Takes a part of several buffers, and returns the length of the part.
    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = buffers.iter().find(|buffer| !buffer.is_empty());
        self.poll_write(cx, first.map_or(&[], |buffer| buffer))
    }

    /// Waits until the kernel has all bytes that were taken.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Flushes, and ends the direction.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Passes up to `room` bytes that have been read to `take`, and consumes them. Returns their
/// number: 0 if there is no room, or at the end.
pub(crate) fn poll_copy<S: Source>(
    source: &mut S,
    cx: &mut Context<'_>,
    room: usize,
    take: impl FnOnce(&[u8]),
) -> Poll<io::Result<usize>> {
    if room == 0 {
        return Poll::Ready(Ok(0));
    }
    let data = ready!(source.poll_fill(cx))?;
    let count = data.len().min(room);
    take(&data[..count]);
    source.consume(count);
    Poll::Ready(Ok(count))
}

/// Defines the methods that `AsyncBufRead` has in both families of traits.
macro_rules! buffered_methods {
    () => {
        fn poll_fill_buf(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<&[u8]>> {
            $crate::io::Source::poll_fill(self.get_mut(), cx)
        }

        fn consume(self: std::pin::Pin<&mut Self>, count: usize) {
            $crate::io::Source::consume(self.get_mut(), count);
        }
    };
}
pub(crate) use buffered_methods;

/// Implements `AsyncRead` and `AsyncBufRead` for a [`Source`]; generic parameters stand in
/// brackets before the type, after `for`.
macro_rules! impl_read {
    (for [$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> futures_io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buffer: &mut [u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                $crate::io::poll_copy(self.get_mut(), cx, buffer.len(), |data| {
                    buffer[..data.len()].copy_from_slice(data);
                })
            }
        }

        impl<$($generics)*> futures_io::AsyncBufRead for $type {
            $crate::io::buffered_methods!();
        }

        #[cfg(feature = "tokio-io")]
        impl<$($generics)*> tokio::io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let room = buffer.remaining();
                $crate::io::poll_copy(self.get_mut(), cx, room, |data| buffer.put_slice(data))
                    .map_ok(|_| ())
            }
        }

        #[cfg(feature = "tokio-io")]
        impl<$($generics)*> tokio::io::AsyncBufRead for $type {
            $crate::io::buffered_methods!();
        }
    };
    ($type:ty) => {
        $crate::io::impl_read!(for [] $type);
    };
}
pub(crate) use impl_read;

/// Defines the methods that `AsyncWrite` has in both families of traits. The name of one method
/// differs.
macro_rules! write_methods {
    ($close:ident) => {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            $crate::io::Sink::poll_write(self.get_mut(), cx, bytes)
        }

        fn poll_write_vectored(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            buffers: &[std::io::IoSlice<'_>],
        ) -> std::task::Poll<std::io::Result<usize>> {
            $crate::io::Sink::poll_write_vectored(self.get_mut(), cx, buffers)
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            $crate::io::Sink::poll_flush(self.get_mut(), cx)
        }

        fn $close(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            $crate::io::Sink::poll_close(self.get_mut(), cx)
        }
    };
}
pub(crate) use write_methods;

/// Implements `AsyncWrite` for a [`Sink`]; generic parameters stand in brackets before the
/// type, after `for`.
macro_rules! impl_write {
    (for [$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> futures_io::AsyncWrite for $type {
            $crate::io::write_methods!(poll_close);
        }

        #[cfg(feature = "tokio-io")]
        impl<$($generics)*> tokio::io::AsyncWrite for $type {
            $crate::io::write_methods!(poll_shutdown);

            fn is_write_vectored(&self) -> bool {
                <$type as $crate::io::Sink>::VECTORED
            }
        }
    };
    ($type:ty) => {
        $crate::io::impl_write!(for [] $type);
    };
}
pub(crate) use impl_write;
