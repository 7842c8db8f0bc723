//! Runs the operations of the section `files` on any single-threaded runtime.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{
    BIG_BYTES, BIG_NUMBER, BLOCK, BLOCKS, BULK_TASKS, CHECKED_BLOCKS, CHECKED_PIECES,
    CHECKED_RECORDS, LONG_BYTES, Mode, OUT_BYTES, Operation, Plan, RECORD_BYTES, Report,
    SMALL_FILES, SMALL_LENGTH, Times, first_word, open_std, page_aligned, pattern, shuffled,
    small_file, sum_words, word,
};

/// Announces an address and waits for the connection of `mixed`.
#[must_use]
pub fn one_connection() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address of the loopback");
    let address = listener.local_addr().expect("the socket is bound");
    println!("listening on {address}");
    let (stream, _) = listener.accept().expect("the driver connects");
    stream.set_nodelay(true).expect("set_nodelay failed");
    stream
}

/// State shared by the tasks of an operation, such as the next piece and the end of the time.
struct Shared {
    plan: Plan,
    /// Number of the next piece.
    next: Cell<u64>,
    /// Time after which no operation begins.
    end: Cell<Instant>,
    times: RefCell<Times>,
    sum: Cell<u64>,
    is_stopped: Rc<Cell<bool>>,
}

impl Shared {
    fn new(plan: &Plan, is_stopped: Rc<Cell<bool>>) -> Shared {
        Shared {
            plan: plan.clone(),
            next: Cell::new(0),
            end: Cell::new(Instant::now() + WARM_UP),
            times: RefCell::default(),
            sum: Cell::new(0),
            is_stopped,
        }
    }

    /// Returns the time at which an operation begins; `None` after the end of the measurement. Each
    /// operation reads the clock twice.
    fn now(&self) -> Option<Instant> {
        let now = Instant::now();
        (!self.is_stopped.get() && now < self.end.get()).then_some(now)
    }

    /// Returns the number of the next piece, out of `pieces`, and the time at which the operation
    /// on that piece begins; `None` after the last piece or after the end of the measurement.
    fn take(&self, pieces: u64) -> Option<(u64, Instant)> {
        let next = self.next.get();
        if self.plan.once && next >= pieces {
            return None;
        }
        let now = self.now()?;
        self.next.set(next + 1);
        Some((next % pieces, now))
    }

    /// Records an operation that ends now, and checks the first word of its data.
    fn count(&self, start_time: Instant, bytes: &[u8], expected: u64) {
        self.times.borrow_mut().record_since(start_time);
        assert_eq!(first_word(bytes), expected, "other bytes than in the file");
        if self.plan.operation == Operation::Check {
            self.sum.set(self.sum.get().wrapping_add(sum_words(bytes)));
        }
    }
}

/// A buffer of file operations, from [`page_aligned`].
pub type Buffer = &'static mut [u8];

/// Interface of a single-threaded runtime. Buffers are passed in and returned.
pub trait Host: Sized + 'static {
    /// An open file.
    type File: Clone + 'static;

    /// Starts a task, at a less urgent level if `is_less_urgent` and the runtime has levels. The
    /// returned future ends with the task.
    fn spawn(
        is_less_urgent: bool,
        task: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()>;

    /// Takes over an open file.
    fn file(file: std::fs::File) -> Self::File;

    /// Opens a file, reads all of it, and closes it.
    fn read_whole(path: PathBuf) -> impl Future<Output = Vec<u8>>;

    /// Fills the buffer, starting at this offset of the file.
    fn read(file: &Self::File, buffer: Buffer, offset: u64) -> impl Future<Output = Buffer>;

    /// Writes the buffer at this offset, or at the end of a file opened for appending.
    fn write(file: &Self::File, buffer: Buffer, offset: u64) -> impl Future<Output = Buffer>;

    /// Waits until the data is on the device.
    fn sync(file: &Self::File) -> impl Future<Output = ()>;

    /// Answers requests of the connection with blocks of the file, until the connection ends.
    fn serve(stream: TcpStream, file: Self::File) -> impl Future<Output = ()>;
}

/// Time for which an operation is repeated before it is measured, if data may be read twice.
pub const WARM_UP: Duration = Duration::from_millis(100);

/// Measures the operation of the command line, within the runtime.
pub async fn run<H: Host>(plan: Plan) {
    let shared = Rc::new(Shared::new(&plan, Rc::default()));
    if plan.operation == Operation::Mixed {
        run_mixed::<H>(shared).await;
        return;
    }
    if !plan.once && plan.operation != Operation::Check {
        run_tasks::<H>(&shared).await;
    }
    let report = Report::start();
    shared.end.set(report.began() + plan.time);
    shared.next.set(0);
    shared.times.take();
    if plan.operation == Operation::Check {
        run_check::<H>(&shared).await;
    } else {
        run_tasks::<H>(&shared).await;
    }
    report.print_and_exit(shared.times.take(), shared.sum.get());
}

async fn run_tasks<H: Host>(shared: &Rc<Shared>) {
    let (path, mode) = shared.plan.file(0);
    let file = (shared.plan.operation != Operation::Open).then(|| H::file(open_std(&path, mode)));
    let mut tasks = Vec::new();
    for task in 0..shared.plan.tasks {
        let (shared, file) = (shared.clone(), file.clone());
        tasks.push(H::spawn(false, run_task::<H>(shared, file, task)));
    }
    for task in tasks {
        task.await;
    }
}

async fn run_task<H: Host>(shared: Rc<Shared>, file: Option<H::File>, task: usize) {
    match (shared.plan.operation, file) {
        (Operation::Open, _) => open_files::<H>(&shared).await,
        (Operation::Random, Some(file)) => read_random::<H>(&shared, &file).await,
        (Operation::Read, Some(file)) => read_in_order::<H>(&shared, &file).await,
        (Operation::Write, Some(file)) => write_in_order::<H>(&shared, &file).await,
        (Operation::Append, Some(file)) => append_records::<H>(&shared, &file, task).await,
        _ => unreachable!("every other operation has a file"),
    }
}

async fn open_files<H: Host>(shared: &Shared) {
    while let Some((number, start_time)) = shared.take(SMALL_FILES as u64) {
        let path = small_file(&shared.plan.dir, number as usize);
        let bytes = H::read_whole(path).await;
        assert_eq!(bytes.len(), SMALL_LENGTH);
        shared.count(start_time, &bytes, word(number, 0));
    }
}

async fn read_random<H: Host>(shared: &Shared, file: &H::File) {
    let mut buffer = page_aligned(BLOCK);
    while let Some((next, start_time)) = shared.take(BLOCKS) {
        let block = shuffled(next);
        buffer = H::read(file, buffer, block * BLOCK as u64).await;
        shared.count(
            start_time,
            buffer,
            word(BIG_NUMBER, block * BLOCK as u64 / 8),
        );
    }
}

async fn read_in_order<H: Host>(shared: &Shared, file: &H::File) {
    let mut buffer = page_aligned(LONG_BYTES);
    while let Some((piece, start_time)) = shared.take(BIG_BYTES / LONG_BYTES as u64) {
        buffer = H::read(file, buffer, piece * LONG_BYTES as u64).await;
        shared.count(
            start_time,
            buffer,
            word(BIG_NUMBER, piece * LONG_BYTES as u64 / 8),
        );
    }
}

async fn write_in_order<H: Host>(shared: &Shared, file: &H::File) {
    let mut buffer = pattern(LONG_BYTES);
    while let Some((piece, start_time)) = shared.take(OUT_BYTES / LONG_BYTES as u64) {
        buffer[..8].copy_from_slice(&word(BIG_NUMBER, piece).to_le_bytes());
        buffer = H::write(file, buffer, piece * LONG_BYTES as u64).await;
        shared.count(start_time, buffer, word(BIG_NUMBER, piece));
    }
}

async fn append_records<H: Host>(shared: &Shared, file: &H::File, task: usize) {
    let mut buffer = pattern(RECORD_BYTES);
    while let Some(start_time) = shared.now() {
        buffer[..8].copy_from_slice(&(task as u64).to_le_bytes());
        buffer = H::write(file, buffer, 0).await;
        H::sync(file).await;
        shared.count(start_time, buffer, task as u64);
    }
}

async fn run_mixed<H: Host>(shared: Rc<Shared>) {
    let stream = one_connection();
    let file = H::file(open_std(&shared.plan.dir.join("big"), Mode::Read));
    let report = Report::start();
    let mut tasks = Vec::new();
    for task in 0..BULK_TASKS {
        let task_state = Rc::new(Shared {
            end: Cell::new(report.began() + BULK_LIMIT),
            ..Shared::new(&shared.plan, shared.is_stopped.clone())
        });
        let (path, mode) = shared.plan.file(task);
        let bulk_file = H::file(open_std(&path, mode));
        let shared_times = shared.clone();
        tasks.push(H::spawn(true, async move {
            write_in_order::<H>(&task_state, &bulk_file).await;
            shared_times.times.borrow_mut().add(task_state.times.take());
        }));
    }
    H::serve(stream, file).await;
    shared.is_stopped.set(true);
    for task in tasks {
        task.await;
    }
    report.print_and_exit(shared.times.take(), 0);
}

/// Time limit for the bulk writes; the driver ends the program earlier.
const BULK_LIMIT: Duration = Duration::from_secs(3600);

/// Executes all kinds of operations; the driver knows the sum, and inspects the written data.
async fn run_check<H: Host>(shared: &Rc<Shared>) {
    let dir = &shared.plan.dir;
    for number in (0..SMALL_FILES).step_by(100) {
        let start_time = Instant::now();
        let bytes = H::read_whole(small_file(dir, number)).await;
        shared.count(start_time, &bytes, word(number as u64, 0));
    }
    let file = H::file(open_std(&dir.join("big"), Mode::Read));
    let mut buffer = page_aligned(BLOCK);
    for block in (0..CHECKED_BLOCKS).rev() {
        let start_time = Instant::now();
        buffer = H::read(&file, buffer, block * BLOCK as u64).await;
        shared.count(
            start_time,
            buffer,
            word(BIG_NUMBER, block * BLOCK as u64 / 8),
        );
    }
    let mut long_buffer = page_aligned(LONG_BYTES);
    for piece in 0..CHECKED_PIECES {
        let start_time = Instant::now();
        long_buffer = H::read(&file, long_buffer, piece * LONG_BYTES as u64).await;
        shared.count(
            start_time,
            long_buffer,
            word(BIG_NUMBER, piece * LONG_BYTES as u64 / 8),
        );
    }
    let out = H::file(open_std(&dir.join("out"), Mode::Write));
    for piece in 0..CHECKED_PIECES {
        long_buffer = H::write(&out, long_buffer, piece * LONG_BYTES as u64).await;
    }
    H::sync(&out).await;
    let log = H::file(open_std(&dir.join("log"), Mode::Append));
    let mut record = pattern(RECORD_BYTES);
    for _ in 0..CHECKED_RECORDS {
        record = H::write(&log, record, 0).await;
        H::sync(&log).await;
    }
}
