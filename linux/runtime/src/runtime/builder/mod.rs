//! The builder, which holds the settings of a runtime. `build.rs` constructs the runtime from them.

mod build;
mod observation;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use upshift_core::{Level, MAX_VCPUS};
use upshift_ring::{Driver, Mode};

use crate::board::Board;
use crate::observe::{OnStall, Stall};
use crate::preempt::Preemption;
use crate::tokio::thread_hooks::{OnStart, OnStop, ThreadHooks};

/// Settings of a runtime to be built.
///
/// ```
/// use std::time::Duration;
///
/// let runtime = upshift::Runtime::builder()
///     .vcpus(2)
///     .spin(Duration::ZERO)
///     .name("api")
///     .build()?;
/// assert_eq!(runtime.block_on(async { 1 + 1 }), 2);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    vcpus: usize,
    pins: Vec<usize>,
    ring: upshift_ring::Config,
    floor: Option<(Level, u8)>,
    chaos: Option<u64>,
    spin: Option<Duration>,
    reap_interval: Duration,
    quantum: Option<Duration>,
    preemption: Preemption,
    blocking_tolerant: bool,
    board: Board,
    max_suspended: usize,
    blocking_threads: usize,
    main_level: Level,
    name: String,
    stall_limit: Option<Duration>,
    on_stall: Option<OnStall>,
    warnings: Option<bool>,
    thread_hooks: ThreadHooks,
    #[cfg(feature = "tokio-rt")]
    tokio: bool,
    #[cfg(feature = "observe")]
    observe: bool,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            vcpus: thread::available_parallelism().map_or(1, usize::from),
            pins: Vec::new(),
            ring: upshift_ring::Config::default(),
            floor: None,
            chaos: None,
            spin: None,
            reap_interval: Duration::from_micros(20),
            quantum: None,
            preemption: Preemption::Off,
            blocking_tolerant: false,
            board: Board::Off,
            max_suspended: 256,
            blocking_threads: 512,
            main_level: Level::DEFAULT,
            name: "upshift".into(),
            stall_limit: None,
            on_stall: None,
            warnings: None,
            thread_hooks: ThreadHooks::default(),
            #[cfg(feature = "tokio-rt")]
            tokio: true,
            #[cfg(feature = "observe")]
            observe: false,
        }
    }

    /// Sets the number of vCPUs, 1 to 256 (default: one per CPU that the process may use).
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(2).build()?;
    /// assert_eq!(runtime.handle().vcpus(), 2);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn vcpus(mut self, vcpus: usize) -> Builder {
        self.vcpus = vcpus;
        self
    }

    /// Pins vCPU k to the k-th of these CPUs. Further vCPUs are not pinned.
    ///
    /// ```
    /// use upshift::Runtime;
    ///
    /// // vCPU 0 on CPU 2, vCPU 1 on CPU 3.
    /// let builder = Runtime::builder().vcpus(2).pin([2, 3]);
    /// # drop(builder);
    /// let missing = Runtime::builder().vcpus(1).pin([1_000_000]).build();
    /// assert_eq!(missing.err().unwrap().kind(), std::io::ErrorKind::InvalidInput);
    /// ```
    #[must_use]
    pub fn pin(mut self, cpus: impl IntoIterator<Item = usize>) -> Builder {
        self.pins = cpus.into_iter().collect();
        self
    }

    /// Sets the number of entries in each ring's submission queue (default 256), that is, the
    /// largest number of operations that are handed to the kernel at once.
    #[must_use]
    pub fn ring_entries(mut self, entries: u32) -> Builder {
        self.ring.entries = entries;
        self
    }

    /// Sets the number (a power of two) and the size in bytes of the receive buffers, which serve
    /// [`recv`](crate::net::TcpStream::recv). Each vCPU has this number of buffers for each level
    /// that receives (default 1024 of 4 KiB), so that data that waits for less urgent coroutines
    /// does not take buffers from more urgent ones.
    ///
    /// ```
    /// use upshift::net::UnixStream;
    ///
    /// // For many connections with short messages: less memory per message.
    /// let runtime = upshift::Runtime::builder().vcpus(1).buffers(4096, 512).build()?;
    /// runtime.block_on(async {
    ///     let (mut one, mut other) = UnixStream::pair()?;
    ///     one.write_all("hello").await.0?;
    ///     assert_eq!(&other.recv().await?[..], b"hello");
    ///     std::io::Result::Ok(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn buffers(mut self, count: u16, size: u32) -> Builder {
        self.ring.buffers = count;
        self.ring.buffer_size = size;
        self
    }

    /// Sets the driver that carries out I/O. The default is [`Driver::Auto`], which uses io_uring
    /// if it works, and otherwise readiness, with a notice on standard error. With `Auto`, the
    /// environment variable `UPSHIFT_DRIVER` may name the driver: `auto`, `ring` or `readiness`.
    ///
    /// Both drivers do the same, with the same guarantees; `docs/drivers.md` lists the differences.
    /// [`Runtime::report`](crate::Runtime::report) returns the choice and its reason.
    ///
    /// ```
    /// use upshift::{Driver, Runtime};
    ///
    /// let runtime = Runtime::builder().driver(Driver::Readiness).build()?;
    /// assert_eq!(runtime.report().driver(), Driver::Readiness);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn driver(mut self, driver: Driver) -> Builder {
        self.ring.driver = driver;
        self
    }

    /// Sets the best mode of io_uring to try (default: the best one that the kernel supports).
    #[must_use]
    pub fn ring_mode(mut self, mode: Mode) -> Builder {
        self.ring.mode = mode;
        self
    }

    /// Keeps `percent` (1 to 99) of the time of each vCPU for the level `from` and less urgent
    /// levels, while they have work. The default is strict priority, under which endless urgent
    /// work starves all other work.
    ///
    /// Strict priority holds among the levels of the floor, so the floor's time goes to the most
    /// urgent of them that is ready. The share of these levels may lag by a
    /// [quantum](Builder::quantum) and one poll. With the quantum *Q* and the share *f*, more
    /// urgent work waits without a pause for at most *Q* / (1 − *f*) plus one poll.
    /// `docs/levels.md` says when to use a floor.
    ///
    /// ```
    /// use upshift::Level;
    ///
    /// let runtime = upshift::Runtime::builder()
    ///     .vcpus(1)
    ///     .floor(Level::NORMAL, 10)
    ///     .build()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn floor(mut self, from: Level, percent: u8) -> Builder {
        self.floor = Some((from, percent));
        self
    }

    /// Enables a test mode, which shuffles the order within a level, and makes the preemption tests
    /// return true in half of all polls, at random. The same `seed` gives the same choices.
    #[must_use]
    pub fn chaos(mut self, seed: u64) -> Builder {
        self.chaos = Some(seed);
        self
    }

    /// Sets the longest time for which a vCPU that other threads have recently woken spins before
    /// it parks (default 50 µs; zero with more vCPUs than CPUs, with one CPU, or with
    /// [`preemption`](Builder::preemption) or [`blocking_tolerant`](Builder::blocking_tolerant)).
    /// Zero disables spinning.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// // A vCPU without work sleeps at once.
    /// let runtime = upshift::Runtime::builder().spin(Duration::ZERO).build()?;
    /// runtime.block_on(upshift::time::sleep(Duration::from_millis(1)));
    /// assert!(runtime.handle().metrics().vcpus.iter().all(|vcpu| vcpu.spin.is_zero()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Builder {
        self.spin = Some(spin);
        self
    }

    /// Sets how long completions may wait in the ring while coroutines are ready (default 20 µs).
    /// With a shorter interval completions are handled sooner; a longer one saves system calls.
    ///
    /// The interval is five times as long while no I/O in flight has a more urgent level than the
    /// ready coroutines, and no vCPU is idle, because a longer wait does not change the order of
    /// polls then.
    #[must_use]
    pub fn reap_interval(mut self, interval: Duration) -> Builder {
        self.reap_interval = interval;
        self
    }

    /// Sets how long a coroutine may run while another coroutine of its level waits (default
    /// 500 µs).
    ///
    /// After this time [`yield_if_needed`](crate::yield_if_needed) gives way, and with
    /// [preemption](Builder::preemption) the poll is suspended. A coroutine that gave way to
    /// something more urgent continues its quantum afterwards. With preemption the quantum is at
    /// least four times the cost of a suspension on this machine; a smaller quantum is raised, with
    /// a warning on standard error.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let builder = upshift::Runtime::builder().vcpus(1);
    /// builder.quantum(Duration::from_micros(100)).build()?.block_on(async {
    ///     let equal = upshift::spawn(async {}, upshift::Priority::Inherit);
    ///     while !equal.is_finished() {
    ///         upshift::yield_if_needed().await; // Gives way to its equal after 100 µs.
    ///     }
    /// });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn quantum(mut self, quantum: Duration) -> Builder {
        self.quantum = Some(quantum);
        self
    }

    /// Sets whether polls that overrun or block are taken off their vCPU. By default
    /// ([`Preemption::Off`]) they are not.
    ///
    /// With preemption, a strictly more urgent coroutine suspends a running poll once the poll has
    /// run for as long as a suspension costs. A coroutine of the same level suspends the poll once
    /// it has run for its [`quantum`](Builder::quantum). A poll whose thread sleeps, in a lock or a
    /// system call, is set aside until the thread wakes up. `docs/preemption.md` states the rule,
    /// its bounds, and its cost.
    ///
    /// The process needs no privileges. The threads of vCPU k are pinned to one CPU: that of
    /// [`pin`](Builder::pin), or the k-th CPU that the process may use. Threads and processes that
    /// a coroutine itself starts inherit that CPU, so start them before the runtime, or use
    /// [`spawn_blocking`](crate::spawn_blocking). Each vCPU has a watcher, a thread that decides
    /// when to interrupt polls. If the process has the privilege, the watcher runs in SCHED_FIFO,
    /// at priority 1, and polls are interrupted sooner. Preemption never gives polling threads a
    /// real-time priority.
    ///
    /// Preemption occupies a real-time signal, whose handler stops threads. So system calls in a
    /// poll that `SA_RESTART` does not restart (`poll`, `epoll_wait`) may return EINTR.
    /// [`no_suspend`](crate::no_suspend) protects sections that must not be interrupted.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    /// use upshift::{Level, Preemption, Runtime};
    ///
    /// let runtime = Runtime::builder().vcpus(1).preemption(Preemption::Preferred).build()?;
    /// # if runtime.handle().preemption_stats().vcpus == 0 { return Ok(()); }
    /// runtime.block_on(async {
    ///     let done = Arc::new(AtomicBool::new(false));
    ///     let theirs = done.clone();
    ///     let spin = async move { while !theirs.load(Relaxed) {} };
    ///     let batch = upshift::spawn(spin, Level::at::<40>());
    ///     // Suspends the poll that never gives way.
    ///     upshift::time::sleep(std::time::Duration::from_millis(1)).await;
    ///     done.store(true, Relaxed);
    ///     batch.await
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn preemption(mut self, preemption: Preemption) -> Builder {
        self.preemption = preemption;
        self
    }

    /// Sets whether other coroutines are polled while the thread of a poll sleeps in a lock or a
    /// system call (default: no).
    ///
    /// [Preemption](Builder::preemption) includes this. `blocking_tolerant` alone never interrupts
    /// a running poll, with one exception for the safety of locks: a poll that slept and has waited
    /// 2 ms to continue may take the place of a running poll. The setting needs the same kernel
    /// features as preemption, and no privileges. Where the kernel lacks these features, the
    /// runtime reports this on standard error, and a poll that blocks stops its vCPU.
    /// [`max_suspended`](Builder::max_suspended) limits the number of blocked polls.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = upshift::Runtime::builder().vcpus(1).blocking_tolerant(true).build()?;
    /// runtime.block_on(async {
    ///     let blocks = upshift::spawn(
    ///         async { std::thread::sleep(Duration::from_millis(20)) },
    ///         upshift::Level::DEFAULT,
    ///     );
    ///     // Meanwhile other coroutines are polled.
    ///     upshift::time::sleep(Duration::from_millis(1)).await;
    ///     blocks.await
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn blocking_tolerant(mut self, tolerant: bool) -> Builder {
        self.blocking_tolerant = tolerant;
        self
    }

    /// Sets whether the runtime joins the machine's daemon (default: [`Board::Off`]). Among all
    /// processes that have joined, the CPU goes to the one with the most urgent coroutine. `upshift
    /// daemon --help` and `docs/daemon.md` describe how to run a daemon.
    ///
    /// Each vCPU is pinned to one CPU: that of [`pin`](Builder::pin), or one of the process's CPUs
    /// in turn. Without preemption each vCPU gets a second thread, the dispatcher, which sleeps on
    /// the vCPU's ring. Threads and processes that a coroutine starts inherit that CPU, so start
    /// them before the runtime, or use [`spawn_blocking`](crate::spawn_blocking).
    ///
    /// With [`preemption`](Builder::preemption) the daemon elevates all threads of a vCPU together,
    /// including the thread that builds the runtime, and elevates the vCPU's watcher above them, so
    /// that suspended polls stay suspended.
    #[must_use]
    pub fn board(mut self, board: Board) -> Builder {
        self.board = board;
        self
    }

    /// Sets the number of polls of a vCPU that can be suspended or blocked at the same time
    /// (default 256; 1 to 4096). Each such poll needs a thread, which is started when it is first
    /// needed, and kept.
    ///
    /// At the limit, a poll that overruns is not suspended until another one has ended. A poll that
    /// blocks, or that suspended polls may depend on, makes room for a suspended poll. No other
    /// coroutine is polled meanwhile. So where long polls arrive almost as fast as the CPU can
    /// finish them, a small number makes short polls wait for long ones after all.
    #[must_use]
    pub fn max_suspended(mut self, polls: usize) -> Builder {
        self.max_suspended = polls;
        self
    }

    /// Sets the largest number of threads for [`spawn_blocking`](crate::spawn_blocking), and with
    /// [`Driver::Readiness`] for files (default 512, as in tokio). The threads are started when
    /// needed. With the feature `tokio-rt`, tokio's blocking functions and files may use the same
    /// number of further threads. Functions that wait for each other need a thread each; the first
    /// function that finds all threads taken is reported on standard error.
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(1).blocking_threads(1).build()?;
    /// runtime.block_on(async {
    ///     for n in 0..3 {
    ///         assert_eq!(upshift::spawn_blocking(move || n).await?, n);
    ///     }
    ///     std::io::Result::Ok(())
    /// })?;
    /// assert!(runtime.handle().metrics().blocking.threads <= 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn blocking_threads(mut self, threads: usize) -> Builder {
        self.blocking_threads = threads;
        self
    }

    /// Sets the level of the main coroutine (default 32), which its children inherit.
    ///
    /// ```
    /// use upshift::{Level, Runtime};
    ///
    /// let runtime = Runtime::builder().vcpus(1).main_level(Level::at::<5>()).build()?;
    /// let level = runtime.block_on(async { upshift::current_level() });
    /// assert_eq!(level, Some(Level::at::<5>()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn main_level(mut self, level: Level) -> Builder {
        self.main_level = level;
        self
    }

    /// Sets the prefix of the names of the threads (default `upshift`).
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(1).name("web").build()?;
    /// let name = || std::thread::current().name().map(str::to_owned);
    /// let name = runtime.block_on(async { upshift::spawn_blocking(name).await })?;
    /// assert!(name.unwrap().starts_with("web"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = name.into();
        self
    }

    /// Sets the duration above which a poll counts as a stall. Stalls are found even while the poll
    /// is under way (default: 100 ms, for [`warnings`](Builder::warnings) only). A limit below a
    /// millisecond counts as one millisecond. See [`observe`](crate::observe).
    ///
    /// The longest polls are in [`Metrics::stalls`](crate::metrics::Metrics::stalls), each with the
    /// location where its coroutine was spawned; [`on_stall`](Builder::on_stall) sets a further
    /// reaction. While something is polled, a thread looks at the polls twice in each `limit`, and
    /// at least every 5 ms; otherwise the thread sleeps.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let limit = Duration::from_millis(10);
    /// let runtime = upshift::Runtime::builder().vcpus(1).stall_limit(limit).build()?;
    /// // … run the program, then look for polls that took longer:
    /// let stalls = runtime.handle().metrics().stalls;
    /// assert_eq!((stalls.limit, stalls.count), (limit, 0));
    /// for poll in stalls.longest {
    ///     println!("{:?} in a coroutine spawned at {}", poll.longest, poll.location);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn stall_limit(mut self, limit: Duration) -> Builder {
        self.stall_limit = Some(limit);
        self
    }

    /// Sets a function to call for polls that take longer than
    /// [`stall_limit`](Builder::stall_limit). A separate thread calls it, at most ten times a
    /// second.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = upshift::Runtime::builder()
    ///     .stall_limit(Duration::from_millis(10))
    ///     .on_stall(upshift::observe::to_stderr)
    ///     .build()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn on_stall(mut self, callback: impl Fn(&Stall) + Send + Sync + 'static) -> Builder {
        self.on_stall = Some(OnStall(Arc::new(callback)));
        self
    }

    /// Sets whether the runtime reports, in a line each on standard error, that
    ///
    /// * a poll has taken 100 ms, or the [`stall_limit`](Builder::stall_limit) that was given, and
    ///   has not ended: at most once a minute for each [name](crate::named) or spawn location, and
    ///   not if [`on_stall`](Builder::on_stall) is set or the vCPUs are
    ///   [preemptible](Builder::preemption);
    /// * a level has ready coroutines of which a vCPU has polled none for a second: at most once a
    ///   minute for each level;
    /// * a detached coroutine has panicked.
    ///
    /// Default: true, unless the environment variable `UPSHIFT_WARNINGS` is `0`. The first two
    /// reports need a thread, which looks 20 times a second while something is polled, and sleeps
    /// otherwise. Without that thread, if it cannot be started, only panics are reported.
    ///
    /// ```
    /// let quiet = upshift::Runtime::builder().warnings(false).build()?;
    /// # drop(quiet);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn warnings(mut self, warnings: bool) -> Builder {
        self.warnings = Some(warnings);
        self
    }

    /// Sets whether `upshift top` may attach, through a Unix socket for processes of the same user.
    /// Default: true if the environment variable `UPSHIFT_OBSERVE` is set, and not to 0. Turns on
    /// [`stall_limit`](Builder::stall_limit), with 10 ms if no limit is given. If the socket cannot
    /// be created, the runtime reports the reason on standard error, and works without the socket.
    ///
    /// Needs the feature `observe`.
    #[cfg(feature = "observe")]
    #[must_use]
    pub fn observe(mut self, observe: bool) -> Builder {
        self.observe = observe;
        self
    }

    /// Runs `hook` on every thread that begins to poll for a vCPU, before its first poll. The
    /// thread of [`block_on`](crate::Runtime::block_on) begins with each call; with preemption, a
    /// spare thread begins each time that it continues the vCPU. `hook` must not block, and may
    /// start coroutines with [`spawn`](crate::spawn). A panic in it is reported, and the thread
    /// continues.
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// thread_local!(static IS_VCPU: Cell<bool> = const { Cell::new(false) });
    ///
    /// let builder = upshift::Runtime::builder().on_vcpu_start(|| IS_VCPU.set(true));
    /// let runtime = builder.build()?;
    /// assert!(!IS_VCPU.get());
    /// runtime.block_on(async { assert!(IS_VCPU.get()) });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn on_vcpu_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Builder {
        self.thread_hooks.add(Arc::new(OnStart(hook)));
        self
    }

    /// Runs `hook` on every thread that stops polling for a vCPU, once for each call of
    /// [`on_vcpu_start`](Builder::on_vcpu_start). The thread has no vCPU any more, so `hook` needs
    /// a [`Handle`](crate::Handle) to start coroutines.
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// thread_local!(static POLLS: Cell<bool> = const { Cell::new(false) });
    ///
    /// let runtime = upshift::Runtime::builder()
    ///     .on_vcpu_start(|| POLLS.set(true))
    ///     .on_vcpu_stop(|| POLLS.set(false))
    ///     .build()?;
    /// runtime.block_on(async { assert!(POLLS.get()) });
    /// assert!(!POLLS.get());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn on_vcpu_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Builder {
        self.thread_hooks.add(Arc::new(OnStop(hook)));
        self
    }

    /// Sets whether coroutines are in the context of a tokio runtime (default: yes). In that
    /// context `tokio::{time, net, fs, signal, process}`, `spawn_blocking` and crates built on them
    /// work in coroutines, at the coroutines' levels. Tasks of `tokio::spawn` run on a thread of
    /// tokio and have no level, so use [`spawn`](crate::spawn) for work that needs one.
    ///
    /// tokio's thread starts when something first registers a timer, waits for a socket or spawns a
    /// task. Until then the context costs five descriptors, and one blocked coroutine that waits
    /// for such a use. If no vCPU of the runtime is served at that time, because the runtime is not
    /// in [`block_on`](crate::Runtime::block_on), the thread starts in the next `block_on`.
    ///
    /// tokio's runtime is a `current_thread` one, so `tokio::task::block_in_place` works in
    /// coroutines but panics in tokio's tasks. A poll that blocks until tokio has done something,
    /// as by `tokio::runtime::Handle::block_on`, stops its vCPU; with a single vCPU and without
    /// preemption, the runtime may then wait for itself. Block in
    /// [`spawn_blocking`](crate::spawn_blocking) instead.
    ///
    /// Needs the feature `tokio-rt`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = upshift::Runtime::new()?;
    /// runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    ///
    /// let without = upshift::Runtime::builder().tokio(false).build()?;
    /// without.block_on(async { assert!(tokio::runtime::Handle::try_current().is_err()) });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[cfg(feature = "tokio-rt")]
    #[must_use]
    pub fn tokio(mut self, tokio: bool) -> Builder {
        self.tokio = tokio;
        self
    }

    /// Checks the settings. Returns the reason if no runtime can be built with them.
    fn check(&self) -> Result<(), String> {
        let why = match self {
            Builder { vcpus: 0, .. } => "a runtime needs at least one vCPU",
            Builder { vcpus, .. } if *vcpus > MAX_VCPUS => {
                return Err(format!(
                    "{vcpus} vCPUs: a runtime has at most {MAX_VCPUS}, and one per CPU is enough"
                ));
            }
            Builder { name, .. } if name.contains('\0') => {
                "the name of a runtime must not contain a NUL, because its threads bear it"
            }
            Builder {
                blocking_threads: 0,
                ..
            } => "Builder::blocking_threads must be at least 1: spawn_blocking would wait for ever",
            Builder {
                floor: Some((_, percent)),
                ..
            } if !(1..100).contains(percent) => {
                return Err(format!(
                    "Builder::floor takes 1 to 99 percent, not {percent}"
                ));
            }
            Builder {
                stall_limit: Some(Duration::ZERO),
                ..
            } => "Builder::stall_limit must be above 0: every poll would be a stall",
            _ => return Ok(()),
        };
        Err(why.to_owned())
    }
}
