//! File benchmarks with blocking calls. The default variant has a thread per task. In the variant
//! `pool`, one thread hands each operation to a thread pool and is notified when the operation
//! ends, as in runtimes without io_uring.

mod pool;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bench_kit::files::{
    BIG_BYTES, BIG_NUMBER, BLOCK, BLOCKS, BULK_TASKS, Buffer, CHECKED_BLOCKS, CHECKED_PIECES,
    CHECKED_RECORDS, LONG_BYTES, Mode, OUT_BYTES, Operation, Plan, RECORD_BYTES, Report,
    SMALL_FILES, SMALL_LENGTH, Times, WARM_UP, first_word, one_connection, open_std, page_aligned,
    pattern, shuffled, small_file, sum_words, word,
};

/// State shared by the tasks of an operation.
struct Shared {
    plan: Plan,
    /// Number of the next piece.
    next: AtomicU64,
    /// Time after which no operation begins.
    end: Mutex<Instant>,
    is_stopped: AtomicBool,
}

impl Shared {
    fn new(plan: &Plan, time: Duration) -> Shared {
        Shared {
            plan: plan.clone(),
            next: AtomicU64::new(0),
            end: Mutex::new(Instant::now() + time),
            is_stopped: AtomicBool::new(false),
        }
    }

    fn end(&self) -> Instant {
        *self.end.lock().expect("no panic while locked")
    }

    /// Returns the number of the next piece, out of `pieces`; `None` if all have been taken and the
    /// command line permits each only once.
    fn take(&self, pieces: u64) -> Option<u64> {
        let next = self.next.fetch_add(1, Relaxed);
        (!self.plan.once || next < pieces).then_some(next % pieces)
    }
}

/// A task, with the file and the buffer of its operations.
struct Task {
    shared: Arc<Shared>,
    file: Option<Arc<File>>,
    number: usize,
    buffer: Buffer,
}

impl Task {
    fn new(shared: &Arc<Shared>, file: Option<Arc<File>>, number: usize) -> Task {
        let buffer = match shared.plan.operation {
            Operation::Random | Operation::Open => page_aligned(BLOCK),
            Operation::Append => pattern(RECORD_BYTES),
            Operation::Read => page_aligned(LONG_BYTES),
            _ => pattern(LONG_BYTES),
        };
        Task {
            shared: shared.clone(),
            file,
            number,
            buffer,
        }
    }

    /// Runs one operation; returns false if no operation is left.
    fn step(&mut self) -> bool {
        let Task { shared, buffer, .. } = self;
        let operation = shared.plan.operation;
        let Some(file) = &self.file else {
            let Some(number) = shared.take(SMALL_FILES as u64) else {
                return false;
            };
            let bytes =
                std::fs::read(small_file(&shared.plan.dir, number as usize)).expect("read failed");
            assert_eq!(
                (bytes.len(), first_word(&bytes)),
                (SMALL_LENGTH, word(number, 0))
            );
            return true;
        };
        let size = match operation {
            Operation::Read => BIG_BYTES,
            _ => OUT_BYTES,
        };
        let piece = match operation {
            Operation::Random => shared.take(BLOCKS).map(shuffled),
            Operation::Append => Some(0),
            _ => shared.take(size / LONG_BYTES as u64),
        };
        let Some(piece) = piece else { return false };
        let offset = piece * buffer.len() as u64;
        match operation {
            Operation::Append => {
                buffer[..8].copy_from_slice(&(self.number as u64).to_le_bytes());
                let mut file: &File = file;
                file.write_all(buffer).expect("write failed");
                file.sync_data().expect("sync failed");
            }
            Operation::Write | Operation::Mixed => {
                buffer[..8].copy_from_slice(&word(BIG_NUMBER, piece).to_le_bytes());
                file.write_all_at(buffer, offset).expect("write failed");
            }
            _ => {
                file.read_exact_at(buffer, offset).expect("read failed");
                assert_eq!(first_word(buffer), word(BIG_NUMBER, offset / 8));
            }
        }
        true
    }

    fn run(&mut self) -> Times {
        let end = self.shared.end();
        let mut times = Times::default();
        loop {
            let start_time = Instant::now();
            if start_time >= end || self.shared.is_stopped.load(Relaxed) || !self.step() {
                return times;
            }
            times.record_since(start_time);
        }
    }
}

fn tasks(shared: &Arc<Shared>) -> Vec<Task> {
    let (path, mode) = shared.plan.file(0);
    let file = (shared.plan.operation != Operation::Open).then(|| Arc::new(open_std(&path, mode)));
    (0..shared.plan.tasks)
        .map(|number| Task::new(shared, file.clone(), number))
        .collect()
}

fn run_threads(tasks: Vec<Task>) -> Times {
    let mut all = Times::default();
    let threads: Vec<_> = tasks
        .into_iter()
        .map(|mut task| std::thread::spawn(move || task.run()))
        .collect();
    for thread in threads {
        all.add(thread.join().expect("nothing panics"));
    }
    all
}

fn main() {
    let plan = Plan::from_args();
    if plan.operation == Operation::Check {
        run_check(&plan);
    }
    if plan.operation == Operation::Mixed {
        run_mixed(&plan);
    }
    let run = |shared: &Arc<Shared>| match plan.variant.as_str() {
        "pool" => pool::run(tasks(shared), plan.tasks),
        _ => run_threads(tasks(shared)),
    };
    if !plan.once {
        run(&Arc::new(Shared::new(&plan, WARM_UP)));
    }
    let report = Report::start();
    let times = run(&Arc::new(Shared::new(&plan, plan.time)));
    report.print_and_exit(times, 0);
}

fn run_mixed(plan: &Plan) -> ! {
    let mut stream = one_connection();
    let big = Arc::new(open_std(&plan.dir.join("big"), Mode::Read));
    let report = Report::start();
    let bulk: Vec<Task> = (0..BULK_TASKS)
        .map(|number| {
            let (path, mode) = plan.file(number);
            let shared = Arc::new(Shared::new(plan, Duration::from_secs(3600)));
            Task::new(&shared, Some(Arc::new(open_std(&path, mode))), number)
        })
        .collect();
    let shared_states: Vec<Arc<Shared>> = bulk.iter().map(|task| task.shared.clone()).collect();
    let pool = (plan.variant == "pool").then(|| pool::Pool::new(plan.tasks));
    let writer_pool = pool.clone();
    let writer = std::thread::spawn(move || match writer_pool {
        Some(pool) => pool::drive(&pool, bulk),
        None => run_threads(bulk),
    });
    serve(&mut stream, &big, pool.as_ref());
    for shared in shared_states {
        shared.is_stopped.store(true, Relaxed);
    }
    report.print_and_exit(writer.join().expect("nothing panics"), 0);
}

fn serve(stream: &mut TcpStream, big: &Arc<File>, pool: Option<&pool::Pool>) {
    let mut number = [0; 8];
    let mut buffer = vec![0; BLOCK];
    while stream.read_exact(&mut number).is_ok() {
        let offset = u64::from_le_bytes(number) * BLOCK as u64;
        if let Some(pool) = pool {
            let (sender, receiver) = std::sync::mpsc::channel();
            let (big, mut block) = (big.clone(), buffer);
            pool.submit(Box::new(move || {
                big.read_exact_at(&mut block, offset).expect("read failed");
                let _ = sender.send(block);
            }));
            buffer = receiver.recv().expect("the job reports its end");
        } else {
            big.read_exact_at(&mut buffer, offset).expect("read failed");
        }
        stream.write_all(&buffer).expect("the driver reads");
    }
}

fn run_check(plan: &Plan) -> ! {
    let report = Report::start();
    let mut total = 0_u64;
    let mut add_sum = |bytes: &[u8]| total = total.wrapping_add(sum_words(bytes));
    for number in (0..SMALL_FILES).step_by(100) {
        add_sum(&std::fs::read(small_file(&plan.dir, number)).expect("read failed"));
    }
    let big = open_std(&plan.dir.join("big"), Mode::Read);
    let mut block = vec![0; BLOCK];
    for number in (0..CHECKED_BLOCKS).rev() {
        big.read_exact_at(&mut block, number * BLOCK as u64)
            .expect("read failed");
        add_sum(&block);
    }
    let mut long_block = vec![0; LONG_BYTES];
    for piece in 0..CHECKED_PIECES {
        big.read_exact_at(&mut long_block, piece * LONG_BYTES as u64)
            .expect("read failed");
        add_sum(&long_block);
    }
    let out = open_std(&plan.dir.join("out"), Mode::Write);
    for piece in 0..CHECKED_PIECES {
        out.write_all_at(&long_block, piece * LONG_BYTES as u64)
            .expect("write failed");
    }
    out.sync_data().expect("sync failed");
    let mut log = open_std(&plan.dir.join("log"), Mode::Append);
    let record = pattern(RECORD_BYTES);
    for _ in 0..CHECKED_RECORDS {
        log.write_all(record).expect("write failed");
        log.sync_data().expect("sync failed");
    }
    report.print_and_exit(Times::default(), total)
}
