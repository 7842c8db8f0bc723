//! The matrix server with three coroutines for each connection.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::Poll;

use os_user::coroutine::{Cid, current, need_preempt, reprio, spawn, wake, yield_now};
use os_user::cpu::{Cpu, alloc_cpu};
use os_user::lock::SpinLock;
use os_user::net::{accept_async, listen};
use os_user::{Error, read, sys, write};

use crate::{QUEUE_LEN, backlog, begin_square, square_row, take_frame};

struct Queue(SpinLock<Frames>);

struct Frames {
    frames: VecDeque<Vec<u8>>,
    is_closed: bool,
    /// The coroutine that waits for frames, or for space.
    waiting: Option<Cid>,
}

impl Queue {
    fn new() -> Arc<Queue> {
        Arc::new(Queue(SpinLock::new(Frames {
            frames: VecDeque::new(),
            is_closed: false,
            waiting: None,
        })))
    }

    async fn push(&self, frame: Vec<u8>) {
        let mut frame = Some(frame);
        poll_fn(|_| {
            let mut queue = self.0.lock();
            if queue.frames.len() >= QUEUE_LEN {
                queue.waiting = Some(current());
                return Poll::Pending;
            }
            queue.frames.extend(frame.take());
            let waiting = queue.waiting.take();
            drop(queue);
            waiting.map(wake);
            Poll::Ready(())
        })
        .await;
    }

    async fn pop(&self) -> Option<Vec<u8>> {
        poll_fn(|_| {
            let mut queue = self.0.lock();
            let frame = queue.frames.pop_front();
            if frame.is_none() && !queue.is_closed {
                queue.waiting = Some(current());
                return Poll::Pending;
            }
            let waiting = queue.waiting.take();
            drop(queue);
            waiting.map(wake);
            Poll::Ready(frame)
        })
        .await
    }

    fn close(&self) {
        let mut queue = self.0.lock();
        queue.is_closed = true;
        let waiting = queue.waiting.take();
        drop(queue);
        waiting.map(wake);
    }
}

/// Serves `count` connections on `cpus` vCPUs until all have ended. If `level` is `None`, the first
/// byte of a connection is its level.
pub(crate) async fn serve(
    port: u16,
    count: usize,
    cpus: usize,
    level: Option<u8>,
) -> Result<(), Error> {
    let listener = listen(port, backlog(level, count))?;
    let extra_cpus: Vec<Cpu> = (1..cpus).map(|_| alloc_cpu()).collect::<Result<_, _>>()?;
    let mut workers = Vec::new();
    for _ in 0..count {
        let connection = accept_async(listener, current()).await;
        let connection = connection?;
        let level = match level {
            Some(level) => Some(level),
            None => {
                let (count, bytes) = read!(connection, vec![0; 1], current()).await;
                count?;
                Some(bytes[0])
            }
        };
        let (requests, replies) = (Queue::new(), Queue::new());
        workers.push(spawn(receive(connection, requests.clone()), level)?);
        workers.push(spawn(compute(requests, replies.clone()), level)?);
        workers.push(spawn(send(connection, replies), level)?);
    }
    sys::close(listener)?;
    // This coroutine only joins; it is less urgent than the coroutines that it joins, unless a
    // client has requested a level that is as little urgent.
    reprio(current(), 62);
    for worker in workers {
        worker.await.unwrap_or(Ok(()))?;
    }
    for cpu in extra_cpus {
        cpu.release()?;
    }
    Ok(())
}

async fn receive(connection: usize, requests: Arc<Queue>) -> Result<(), Error> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 4096]);
    loop {
        let (count, bytes) = read!(connection, buffer, current()).await;
        buffer = bytes;
        match count {
            Ok(count) if count > 0 => received.extend_from_slice(&buffer[..count]),
            _ => break,
        }
        while let Some(frame) = take_frame(&mut received) {
            requests.push(frame).await;
        }
    }
    requests.close();
    Ok(())
}

async fn compute(requests: Arc<Queue>, replies: Arc<Queue>) -> Result<(), Error> {
    while let Some(frame) = requests.pop().await {
        let mut square = begin_square(&frame);
        for row in 0..square.words.len().isqrt() {
            // The kernel preempts a thread for a more urgent thread; a coroutine must yield to
            // another coroutine of its process.
            if need_preempt() {
                yield_now().await;
            }
            square_row(&mut square, row);
        }
        replies.push(square.reply).await;
    }
    replies.close();
    Ok(())
}

async fn send(connection: usize, replies: Arc<Queue>) -> Result<(), Error> {
    while let Some(reply) = replies.pop().await {
        // The client may be gone.
        let _ = write!(connection, reply, current()).await;
    }
    sys::close(connection)?;
    Ok(())
}
