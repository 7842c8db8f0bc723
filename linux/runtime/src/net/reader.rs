//! The receiving side of a connected socket: its receive operation, and bytes that have been
//! received but not read.
//!
//! At first, reads go straight into the caller's buffers. The first [`recv`](Reader::recv), which
//! asks for the ring's buffers, starts a multishot receive, which continues until it is dropped.
//! From then on, reads copy out of the ring's buffers.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use upshift_ring::{IoBufMut, RecvBuf, RecvMulti, op};

use super::family::Family;
use super::transfer;
use crate::context;
use crate::coroutine::coop;
use crate::io::{Descriptor, Source};
use crate::user_code::on_vcpu::OnVcpu;

/// The receiving side. The fields are dropped in this order: first the operation, then the
/// descriptor.
pub(crate) struct Reader {
    state: ReceiveState,
    unread: RecvBuf,
    family: Family,
    pub(crate) fd: Descriptor,
}

/// State of the multishot receive.
enum ReceiveState {
    Unarmed,
    Armed(RecvMulti),
    /// A coroutine arms the operation, since the calling thread belongs to tokio.
    Arming(Box<OnVcpu<io::Result<RecvMulti>>>),
}

impl Reader {
    pub(crate) fn new(fd: Descriptor, family: Family) -> Reader {
        Reader {
            state: ReceiveState::Unarmed,
            unread: RecvBuf::empty(),
            family,
            fd,
        }
    }

    /// Receives data. This is not an `async fn`, because each poll would then have more states to
    /// distinguish, in this future and in its callers.
    #[inline]
    pub(crate) fn recv(&mut self) -> Receiving<'_> {
        Receiving(self)
    }

    fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        loop {
            let operation = match &mut self.state {
                ReceiveState::Armed(operation) => operation,
                _ => {
                    self.state = ReceiveState::Armed(ready!(self.poll_arm(cx))?);
                    continue;
                }
            };
            let next = operation.poll_next(cx);
            // The vCPU that armed the operation has been released, so arm the operation on this
            // vCPU.
            if let Poll::Ready(Err(error)) = &next
                && super::is_cancelled(error)
            {
                self.state = ReceiveState::Unarmed;
                continue;
            }
            return next;
        }
    }

    fn poll_arm(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RecvMulti>> {
        let operation = context::with(|worker| self.family.receive(worker, self.fd.clone()));
        if let Some(operation) = operation {
            return Poll::Ready(Ok(operation));
        }
        if !matches!(self.state, ReceiveState::Arming(_)) {
            let (fd, family) = (self.fd.clone(), self.family);
            let arm = async move { context::try_with(|worker| family.receive(worker, fd)) };
            self.state = ReceiveState::Arming(Box::new(OnVcpu::run(arm)?));
        }
        let ReceiveState::Arming(on_vcpu) = &mut self.state else {
            return Poll::Ready(Err(context::outside()));
        };
        let result = ready!(Pin::new(on_vcpu).poll(cx));
        self.state = ReceiveState::Unarmed;
        Poll::Ready(result.unwrap_or_else(|| Err(context::outside())))
    }

    pub(crate) async fn read<B: IoBufMut>(&mut self, mut buffer: B) -> (io::Result<usize>, B) {
        if buffer.io_capacity() == 0 {
            // Otherwise the kernel would wait for data, and then return 0.
            return (Ok(0), buffer);
        }
        while matches!(self.state, ReceiveState::Unarmed) && self.unread.is_empty() {
            let result;
            (result, buffer) = transfer!(op::Recv::new(self.fd.clone(), buffer), buffer);
            match result {
                Err(error) if super::is_cancelled(&error) => {}
                result => return (result, buffer),
            }
        }
        let mut data = match self.recv().await {
            Ok(data) => data,
            Err(error) => return (Err(error), buffer),
        };
        let count = data.len().min(buffer.io_capacity());
        // SAFETY: `data` is valid for reads and `buffer` for writes of `count` bytes, and they do
        // not overlap. The bytes are written before they are declared filled.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.io_mut_ptr(), count);
            buffer.set_filled(count);
        }
        data.advance(count);
        self.unread = data;
        (Ok(count), buffer)
    }
}

pub(crate) struct Receiving<'a>(&'a mut Reader);

impl Future for Receiving<'_> {
    type Output = io::Result<RecvBuf>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        let reader = &mut *self.0;
        if !reader.unread.is_empty() {
            return Poll::Ready(Ok(std::mem::replace(&mut reader.unread, RecvBuf::empty())));
        }
        ready!(coop::poll_proceed(cx));
        reader.poll_received(cx)
    }
}

impl Source for Reader {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.unread.is_empty() {
            ready!(coop::poll_proceed(cx));
            self.unread = ready!(self.poll_received(cx))?;
        }
        Poll::Ready(Ok(&self.unread))
    }

    fn consume(&mut self, count: usize) {
        self.unread.advance(count);
        if self.unread.is_empty() {
            // A `RecvBuf` without unread bytes still occupies a buffer of the ring.
            self.unread = RecvBuf::empty();
        }
    }
}
