//! The section `files`: the same work on files for every peer, and what it prints.
//!
//! A program is called with a row and measures it: `PROGRAM ROW --dir DIR --seconds S --tasks N [--direct] [--once]`. The files of DIR are made by the
//! driver, which also says what is in them: word *i* of a file is [`word`] of its number and *i*. At the end the program prints
//! one line of JSON ([`Report`]).
//!
//! | row | what a task does until the time is over |
//! |---|---|
//! | `open` | opens the next of the small files, reads it to its end, closes it; `--once`: until each has been read |
//! | `random` | reads 4 KiB of the big file, anywhere; `--direct`: past the page cache |
//! | `read` | reads the next MiB of the big file; `--once`: until it has been read |
//! | `write` | writes the next MiB of the file `out` |
//! | `append` | appends 512 bytes to the file `log`, and waits until they are on the device |
//! | `mixed` | [`BULK`] tasks write 1 MiB after the other, each to a file of its own, of a less urgent level where there are levels; a connection asks for blocks of the big file |
//! | `check` | all of them a little, and prints a sum of what was read: not measured |
//!
//! In `mixed` the program prints `listening on ADDR:PORT` and takes one connection: the number of a block of 4 KiB, 8 bytes, little-endian, is answered by
//! the block. When the connection ends so does the run.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

/// Bytes of the big file.
pub const BIG: u64 = 512 << 20;
/// Small files.
pub const SMALL: usize = 10_000;
/// Bytes of each: as most files, they do not end with a page.
pub const SMALL_LENGTH: usize = 4000;
/// Bytes of a random read.
pub const BLOCK: usize = 4096;
/// Bytes of a long read or write.
pub const LONG: usize = 1 << 20;
/// Bytes of the files that are written to, from the beginning again and again.
pub const OUT: u64 = 64 << 20;
/// Bytes of a record of the log.
pub const RECORD: usize = 512;
/// Tasks that write in `mixed`.
pub const BULK: usize = 8;
/// The number of the big file, for [`word`]; small files have their own.
pub const BIG_NUMBER: u64 = SMALL as u64;

/// Word `index` of file `number`.
#[must_use]
pub fn word(number: u64, index: u64) -> u64 {
    // Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): its output function.
    let mut z = (number << 40 | index).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The sum of the words of some bytes.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(first);
    words.fold(0, u64::wrapping_add)
}

/// The first word of some bytes.
#[must_use]
pub fn first(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// The path of a small file.
#[must_use]
pub fn small(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("small/{number:05}"))
}

/// Zeroed memory for direct I/O. Never freed: programs of this section end by `exit`.
#[must_use]
pub fn aligned(length: usize) -> Vec<u8> {
    let layout = std::alloc::Layout::from_size_align(length, 4096).expect("a power of two");
    // SAFETY: the layout is not empty; the vector is leaked by every caller.
    unsafe { Vec::from_raw_parts(std::alloc::alloc_zeroed(layout), length, length) }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// See the module.
    Open,
    /// See the module.
    Random,
    /// See the module.
    Read,
    /// See the module.
    Write,
    /// See the module.
    Append,
    /// See the module.
    Mixed,
    /// See the module.
    Check,
}

/// Measures files
#[derive(Clone, Debug, Parser)]
pub struct Plan {
    /// What is measured
    pub row: Row,
    /// The flavour of the peer
    #[arg(long, default_value = "")]
    pub variant: String,
    /// Where the files are
    #[arg(long)]
    pub dir: PathBuf,
    /// How long it is measured, s
    #[arg(long = "seconds", value_name = "S", default_value = "1", value_parser = seconds)]
    pub time: Duration,
    /// Tasks, or threads, that do it
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub tasks: usize,
    /// Past the page cache
    #[arg(long)]
    pub direct: bool,
    /// Nothing is read twice
    #[arg(long)]
    pub once: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "use a number of seconds".into())
}

impl Plan {
    /// Of this process; ends it if the command line is wrong.
    #[must_use]
    pub fn of_process() -> Plan {
        Plan::parse()
    }

    /// The file that a row uses, and how it is opened; `open` uses none.
    #[must_use]
    pub fn file(&self, task: usize) -> (PathBuf, Mode) {
        let (name, mode) = match self.row {
            Row::Write => ("out".to_owned(), Mode::Write),
            Row::Append => ("log".to_owned(), Mode::Append),
            Row::Mixed => (format!("bulk-{task}"), Mode::Write),
            _ if self.direct => ("big".to_owned(), Mode::Direct),
            _ => ("big".to_owned(), Mode::Read),
        };
        (self.dir.join(name), mode)
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For reading.
    Read,
    /// For reading, past the page cache.
    Direct,
    /// For writing; created if it is not there.
    Write,
    /// For writing at the end; created if it is not there.
    Append,
}

/// Opens a file as the standard library does: outside of what is measured.
#[must_use]
pub fn open_std(path: &Path, mode: Mode) -> std::fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    match mode {
        Mode::Read => options.read(true),
        Mode::Direct => options.read(true).custom_flags(libc::O_DIRECT),
        Mode::Write => options.write(true).create(true),
        Mode::Append => options.append(true).create(true),
    };
    options
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Times of operations, ns.
#[derive(Default)]
pub struct Times(Vec<u32>);

impl Times {
    /// An operation that began at this time ends now.
    pub fn since(&mut self, began: Instant) {
        let took = began.elapsed().as_nanos();
        self.0.push(u32::try_from(took).unwrap_or(u32::MAX));
    }

    /// Those of another one, too.
    pub fn add(&mut self, other: Times) {
        self.0.extend(other.0);
    }
}

/// CPU time of the process: user, kernel.
fn used() -> [Duration; 2] {
    // SAFETY: plain numbers, for which zeros are valid; the call writes to them only.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut used);
        used
    };
    [used.ru_utime, used.ru_stime].map(|time| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    })
}

/// What was measured, from a moment on.
pub struct Report {
    began: Instant,
    used: [Duration; 2],
}

impl Report {
    /// From now on.
    #[must_use]
    pub fn start() -> Report {
        Report {
            began: Instant::now(),
            used: used(),
        }
    }

    /// When it began.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Prints the line, and ends the process.
    pub fn end(self, times: Times, sum: u64) -> ! {
        let seconds = self.began.elapsed().as_secs_f64();
        let [user, sys] = used();
        let mut times = times.0;
        times.sort_unstable();
        let at = |quantile: f64| {
            let index = (times.len() as f64 * quantile) as usize;
            let ns = times.get(index.min(times.len().saturating_sub(1)));
            ns.map_or(0.0, |&ns| f64::from(ns) / 1e3)
        };
        println!(
            "{{\"ops\":{},\"seconds\":{seconds:.6},\"p50\":{:.2},\"p99\":{:.2},\"p999\":{:.2},\"user\":{:.6},\"sys\":{:.6},\"sum\":{sum}}}",
            times.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            (user - self.used[0]).as_secs_f64(),
            (sys - self.used[1]).as_secs_f64(),
        );
        std::process::exit(0);
    }
}

/// The connection of `mixed`: announces the address, and waits for it.
#[must_use]
pub fn one_connection() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address of the loopback");
    let address = listener.local_addr().expect("it is bound");
    println!("listening on {address}");
    let (stream, _) = listener.accept().expect("the driver connects");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// What the tasks of a row share: which is next, and until when.
struct Shared {
    plan: Plan,
    next: Cell<u64>,
    until: Cell<Instant>,
    times: RefCell<Times>,
    sum: Cell<u64>,
    stopped: Rc<Cell<bool>>,
}

impl Shared {
    fn new(plan: &Plan, stopped: Rc<Cell<bool>>) -> Shared {
        Shared {
            plan: plan.clone(),
            next: Cell::new(0),
            until: Cell::new(Instant::now() + WARM_UP),
            times: RefCell::default(),
            sum: Cell::new(0),
            stopped,
        }
    }

    /// Now, unless the time is over. An operation begins then: the clock is read twice for each.
    fn now(&self) -> Option<Instant> {
        let now = Instant::now();
        (!self.stopped.get() && now < self.until.get()).then_some(now)
    }

    /// The number of the next piece of so many; `None` when everything is done.
    fn take(&self, pieces: u64) -> Option<(u64, Instant)> {
        let next = self.next.get();
        if self.plan.once && next >= pieces {
            return None;
        }
        let now = self.now()?;
        self.next.set(next + 1);
        Some((next % pieces, now))
    }

    fn count(&self, began: Instant, bytes: &[u8], expected: u64) {
        self.times.borrow_mut().since(began);
        assert_eq!(first(bytes), expected, "other bytes than in the file");
        if self.plan.row == Row::Check {
            self.sum.set(self.sum.get().wrapping_add(sum(bytes)));
        }
    }
}

/// What a runtime with one thread offers. Buffers go in and come back.
pub trait Host: Sized + 'static {
    /// An open file.
    type File: Clone + 'static;

    /// Starts a task; at a less urgent level if that is asked for and there are levels. The returned future ends with it.
    fn spawn(
        is_less_urgent: bool,
        task: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()>;

    /// Takes over an open file.
    fn file(file: std::fs::File) -> Self::File;

    /// Opens a file, reads all of it, and closes it.
    fn whole(path: PathBuf) -> impl Future<Output = Vec<u8>>;

    /// Fills the buffer from this offset on.
    fn read(file: &Self::File, buffer: Vec<u8>, offset: u64) -> impl Future<Output = Vec<u8>>;

    /// Writes the buffer at this offset, or at the end of a file that is opened so.
    fn write(file: &Self::File, buffer: Vec<u8>, offset: u64) -> impl Future<Output = Vec<u8>>;

    /// Waits until the data is on the device.
    fn sync(file: &Self::File) -> impl Future<Output = ()>;

    /// Answers with blocks of the file what the connection asks for, until it ends.
    fn serve(stream: TcpStream, file: Self::File) -> impl Future<Output = ()>;
}

/// How long a row runs before it is measured, if what is read may be read twice.
pub const WARM_UP: Duration = Duration::from_millis(100);

/// Measures the row of the command line, within the runtime.
pub async fn run<H: Host>(plan: Plan) {
    let shared = Rc::new(Shared::new(&plan, Rc::default()));
    if plan.row == Row::Mixed {
        mixed::<H>(shared).await;
        return;
    }
    if !plan.once && plan.row != Row::Check {
        all::<H>(&shared).await;
    }
    let report = Report::start();
    shared.until.set(report.began() + plan.time);
    shared.next.set(0);
    shared.times.take();
    if plan.row == Row::Check {
        check::<H>(&shared).await;
    } else {
        all::<H>(&shared).await;
    }
    report.end(shared.times.take(), shared.sum.get());
}

async fn all<H: Host>(shared: &Rc<Shared>) {
    let (path, mode) = shared.plan.file(0);
    let file = (shared.plan.row != Row::Open).then(|| H::file(open_std(&path, mode)));
    let mut tasks = Vec::new();
    for task in 0..shared.plan.tasks {
        let (shared, file) = (shared.clone(), file.clone());
        tasks.push(H::spawn(false, one::<H>(shared, file, task)));
    }
    for task in tasks {
        task.await;
    }
}

async fn one<H: Host>(shared: Rc<Shared>, file: Option<H::File>, task: usize) {
    match (shared.plan.row, file) {
        (Row::Open, _) => opens::<H>(&shared).await,
        (Row::Random, Some(file)) => randoms::<H>(&shared, &file, task).await,
        (Row::Read, Some(file)) => reads::<H>(&shared, &file).await,
        (Row::Write, Some(file)) => writes::<H>(&shared, &file).await,
        (Row::Append, Some(file)) => appends::<H>(&shared, &file, task).await,
        _ => unreachable!("every other row has a file"),
    }
}

async fn opens<H: Host>(shared: &Shared) {
    while let Some((number, began)) = shared.take(SMALL as u64) {
        let path = small(&shared.plan.dir, number as usize);
        let bytes = H::whole(path).await;
        assert_eq!(bytes.len(), SMALL_LENGTH);
        shared.count(began, &bytes, word(number, 0));
    }
}

/// Where the random numbers of a task begin.
#[must_use]
pub fn seed(task: usize) -> u64 {
    word(u64::MAX >> 40, task as u64) | 1
}

/// The next of them (Marsaglia, "Xorshift RNGs", 2003).
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

async fn randoms<H: Host>(shared: &Shared, file: &H::File, task: usize) {
    let mut buffer = aligned(BLOCK);
    let mut state = seed(task);
    while let Some(began) = shared.now() {
        let block = random(&mut state) % (BIG / BLOCK as u64);
        buffer = H::read(file, buffer, block * BLOCK as u64).await;
        shared.count(began, &buffer, word(BIG_NUMBER, block * BLOCK as u64 / 8));
    }
    std::mem::forget(buffer);
}

async fn reads<H: Host>(shared: &Shared, file: &H::File) {
    let mut buffer = aligned(LONG);
    while let Some((piece, began)) = shared.take(BIG / LONG as u64) {
        buffer = H::read(file, buffer, piece * LONG as u64).await;
        shared.count(began, &buffer, word(BIG_NUMBER, piece * LONG as u64 / 8));
    }
    std::mem::forget(buffer);
}

/// What is written: the beginning of the big file.
#[must_use]
pub fn pattern(length: usize) -> Vec<u8> {
    let mut buffer = aligned(length);
    for (index, chunk) in buffer.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(BIG_NUMBER, index as u64).to_le_bytes());
    }
    buffer
}

async fn writes<H: Host>(shared: &Shared, file: &H::File) {
    let mut buffer = pattern(LONG);
    while let Some((piece, began)) = shared.take(OUT / LONG as u64) {
        buffer[..8].copy_from_slice(&word(BIG_NUMBER, piece).to_le_bytes());
        buffer = H::write(file, buffer, piece * LONG as u64).await;
        shared.count(began, &buffer, word(BIG_NUMBER, piece));
    }
    std::mem::forget(buffer);
}

async fn appends<H: Host>(shared: &Shared, file: &H::File, task: usize) {
    let mut buffer = pattern(RECORD);
    while let Some(began) = shared.now() {
        buffer[..8].copy_from_slice(&(task as u64).to_le_bytes());
        buffer = H::write(file, buffer, 0).await;
        H::sync(file).await;
        shared.count(began, &buffer, task as u64);
    }
    std::mem::forget(buffer);
}

async fn mixed<H: Host>(shared: Rc<Shared>) {
    let stream = one_connection();
    let file = H::file(open_std(&shared.plan.dir.join("big"), Mode::Read));
    let report = Report::start();
    let mut tasks = Vec::new();
    for task in 0..BULK {
        let one = Rc::new(Shared {
            until: Cell::new(report.began() + AN_HOUR),
            ..Shared::new(&shared.plan, shared.stopped.clone())
        });
        let (path, mode) = shared.plan.file(task);
        let written = H::file(open_std(&path, mode));
        let all = shared.clone();
        tasks.push(H::spawn(true, async move {
            writes::<H>(&one, &written).await;
            all.times.borrow_mut().add(one.times.take());
        }));
    }
    H::serve(stream, file).await;
    shared.stopped.set(true);
    for task in tasks {
        task.await;
    }
    report.end(shared.times.take(), 0);
}

/// The driver ends it.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// All kinds of operations; the driver knows the sum, and looks at what was written.
async fn check<H: Host>(shared: &Rc<Shared>) {
    let dir = &shared.plan.dir;
    for number in (0..SMALL).step_by(100) {
        let began = Instant::now();
        let bytes = H::whole(small(dir, number)).await;
        shared.count(began, &bytes, word(number as u64, 0));
    }
    let file = H::file(open_std(&dir.join("big"), Mode::Read));
    let mut buffer = aligned(BLOCK);
    for block in (0..CHECKED_BLOCKS).rev() {
        let began = Instant::now();
        buffer = H::read(&file, buffer, block * BLOCK as u64).await;
        shared.count(began, &buffer, word(BIG_NUMBER, block * BLOCK as u64 / 8));
    }
    let mut long = aligned(LONG);
    for piece in 0..CHECKED_PIECES {
        let began = Instant::now();
        long = H::read(&file, long, piece * LONG as u64).await;
        shared.count(began, &long, word(BIG_NUMBER, piece * LONG as u64 / 8));
    }
    let out = H::file(open_std(&dir.join("out"), Mode::Write));
    for piece in 0..CHECKED_PIECES {
        long = H::write(&out, long, piece * LONG as u64).await;
    }
    H::sync(&out).await;
    let log = H::file(open_std(&dir.join("log"), Mode::Append));
    let mut record = pattern(RECORD);
    for _ in 0..CHECKED_RECORDS {
        record = H::write(&log, record, 0).await;
        H::sync(&log).await;
    }
    std::mem::forget((buffer, long, record));
}

/// Blocks of the big file that `check` reads, from the last to the first.
pub const CHECKED_BLOCKS: u64 = 512;
/// Pieces of 1 MiB of the big file that it reads; then it writes the last of them as often to `out`.
pub const CHECKED_PIECES: u64 = 8;
/// Records that it appends to `log`.
pub const CHECKED_RECORDS: usize = 20;
