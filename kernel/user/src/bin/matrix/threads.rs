//! The matrix server with three threads for each connection, and synchronous calls.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use os_user::net::{accept, listen};
use os_user::sync::{Condvar, Mutex};
use os_user::{Error, read, sys, thread, write};

use crate::{QUEUE_LEN, backlog, square, take_frame};

/// A bounded queue of frames from one thread to another.
struct Queue {
    /// Frames, and a flag that is set when no more frames will be pushed.
    frames: Mutex<(VecDeque<Vec<u8>>, bool)>,
    changed: Condvar,
}

impl Queue {
    fn new() -> Arc<Queue> {
        Arc::new(Queue {
            frames: Mutex::new((VecDeque::new(), false)),
            changed: Condvar::new(),
        })
    }

    fn push(&self, frame: Vec<u8>) {
        let mut queue = self.frames.lock();
        while queue.0.len() >= QUEUE_LEN {
            queue = self.changed.wait(queue);
        }
        queue.0.push_back(frame);
        drop(queue);
        self.changed.notify_one();
    }

    fn pop(&self) -> Option<Vec<u8>> {
        let mut queue = self.frames.lock();
        loop {
            let was_full = queue.0.len() >= QUEUE_LEN;
            if let Some(frame) = queue.0.pop_front() {
                drop(queue);
                if was_full {
                    self.changed.notify_one();
                }
                return Some(frame);
            }
            if queue.1 {
                return None;
            }
            queue = self.changed.wait(queue);
        }
    }

    fn close(&self) {
        self.frames.lock().1 = true;
        self.changed.notify_one();
    }
}

/// Stack size of a thread in pages: 16 KiB, as in the SharedScheduler papers.
const STACK_PAGES: usize = 4;

/// Serves `count` connections until all have ended. If `level` is `None`, the first byte of a
/// connection is its level.
pub(crate) fn serve(port: u16, count: usize, level: Option<u8>) -> Result<(), Error> {
    thread::set_stack_pages(STACK_PAGES);
    let listener = listen(port, backlog(level, count))?;
    let mut workers = Vec::new();
    for _ in 0..count {
        let connection = accept(listener)?;
        let mut first = [0];
        let level = match level {
            Some(level) => level,
            None => {
                read(connection, &mut first)?;
                first[0]
            }
        };
        let level = usize::from(level);
        let (requests, replies) = (Queue::new(), Queue::new());
        let (pending, finished) = (requests.clone(), replies.clone());
        workers.push(thread::spawn(move || {
            receive(connection, &requests, level)
        })?);
        workers.push(thread::spawn(move || compute(&pending, &replies, level))?);
        workers.push(thread::spawn(move || send(connection, &finished, level))?);
    }
    sys::close(listener)?;
    for worker in workers {
        worker.join()??;
    }
    Ok(())
}

fn receive(connection: usize, requests: &Queue, level: usize) -> Result<(), Error> {
    sys::set_level(level)?;
    let (mut received, mut buffer) = (Vec::new(), vec![0; 4096]);
    while let Ok(count @ 1..) = read(connection, &mut buffer) {
        received.extend_from_slice(&buffer[..count]);
        while let Some(frame) = take_frame(&mut received) {
            requests.push(frame);
        }
    }
    requests.close();
    Ok(())
}

fn compute(requests: &Queue, replies: &Queue, level: usize) -> Result<(), Error> {
    sys::set_level(level)?;
    while let Some(frame) = requests.pop() {
        replies.push(square(&frame));
    }
    replies.close();
    Ok(())
}

fn send(connection: usize, replies: &Queue, level: usize) -> Result<(), Error> {
    sys::set_level(level)?;
    while let Some(reply) = replies.pop() {
        // Ignore errors: the client may have closed the connection.
        let _ = write(connection, &reply);
    }
    sys::close(connection)?;
    Ok(())
}
