//! Implements a thread pool with one queue, and the loop of the thread that keeps the pool busy.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Instant;

use bench_kit::files::Times;

use crate::Task;

type Job = Box<dyn FnOnce() + Send>;

/// A handle to a thread pool: the queue from which its threads take jobs.
#[derive(Clone)]
pub(crate) struct Pool(Arc<(Mutex<VecDeque<Job>>, Condvar)>);

impl Pool {
    pub(crate) fn new(threads: usize) -> Pool {
        let pool = Pool(Arc::default());
        for _ in 0..threads {
            let pool = pool.clone();
            std::thread::spawn(move || pool.work());
        }
        pool
    }

    fn work(&self) {
        let (jobs, available) = &*self.0;
        loop {
            let mut waiting = jobs.lock().expect("no panic while locked");
            let job = loop {
                match waiting.pop_front() {
                    Some(job) => break job,
                    None => waiting = available.wait(waiting).expect("no panic while locked"),
                }
            };
            drop(waiting);
            job();
        }
    }

    pub(crate) fn submit(&self, job: Job) {
        let (jobs, available) = &*self.0;
        jobs.lock().expect("no panic while locked").push_back(job);
        available.notify_one();
    }
}

/// Runs the tasks, each with one operation at a time, on a new pool of `threads` threads.
pub(crate) fn run(tasks: Vec<Task>, threads: usize) -> Times {
    drive(&Pool::new(threads), tasks)
}

/// Runs the tasks, each with one operation at a time, on an existing pool.
pub(crate) fn drive(pool: &Pool, tasks: Vec<Task>) -> Times {
    let (sender, receiver) = mpsc::channel::<(Task, Instant, bool)>();
    let start = |mut task: Task| {
        let (sender, start_time) = (sender.clone(), Instant::now());
        pool.submit(Box::new(move || {
            let has_more = task.step();
            let _ = sender.send((task, start_time, has_more));
        }));
    };
    let mut times = Times::default();
    let mut running = tasks.len();
    tasks.into_iter().for_each(start);
    while running > 0 {
        let (task, start_time, has_more) = receiver.recv().expect("the job reports its end");
        if has_more {
            times.record_since(start_time);
        }
        let is_stopped = task
            .shared
            .is_stopped
            .load(std::sync::atomic::Ordering::Relaxed);
        if has_more && !is_stopped && Instant::now() < task.shared.end() {
            start(task);
        } else {
            running -= 1;
        }
    }
    times
}
