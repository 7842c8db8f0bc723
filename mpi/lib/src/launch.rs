//! Starts and ends a rank. This includes MPI itself, the memory that the ranks of a node share, the
//! runtime, and the watchdog thread.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mpi_sys as sys;
use upshift::{Board, JoinHandle, Level, Preemption, Runtime, spawn, time};

use crate::comm::Comm;
use crate::error::{Error, Result, Threads, check};
use crate::job::Job;
use crate::lifeline::Lifeline;
use crate::node::{self, Node, PHASE_AWAY};
use crate::progress::progress;
use crate::serve::World;
use crate::watchdog::{HEARTBEAT_INTERVAL, TimeLimits, Watchdog};

/// Maximum wait, when a rank leaves, for operations that other ranks have not matched.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a rank; [`run`](Self::run) runs it.
///
/// ```no_run
/// fn main() -> upshift_mpi::Result<()> {
///     upshift_mpi::Launch::new().run(async |world| {
///         let sum = world
///             .comm()
///             .allreduce(vec![world.rank() as u64], upshift_mpi::Op::Sum)
///             .await?;
///         println!("rank {} of {}: {}", world.rank(), world.size(), sum[0]);
///         Ok(())
///     })
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    vcpus: usize,
    preemption: Preemption,
    board: Board,
    main_level: Level,
    limits: TimeLimits,
    single_copy: bool,
}

impl Default for Launch {
    fn default() -> Launch {
        Launch::new()
    }
}

impl Launch {
    /// Creates a configuration with one vCPU, without preemption and without a board.
    #[must_use]
    pub fn new() -> Launch {
        Launch {
            vcpus: 1,
            preemption: Preemption::Off,
            board: Board::Off,
            main_level: Level::DEFAULT,
            limits: TimeLimits {
                hang: Duration::from_secs(30),
                grace: Duration::from_millis(500),
            },
            single_copy: false,
        }
    }

    /// Sets the number of vCPUs, which are the run queues that threads serve, of each rank (default
    /// 1). With more than one, MPI must support [`Threads::Serialized`].
    #[must_use]
    pub fn vcpus(mut self, vcpus: usize) -> Launch {
        self.vcpus = vcpus.max(1);
        self
    }

    /// Sets the preemption, like [`upshift::Builder::preemption`]. With preemption, MPI must
    /// support [`Threads::Serialized`].
    #[must_use]
    pub fn preemption(mut self, preemption: Preemption) -> Launch {
        self.preemption = preemption;
        self
    }

    /// Sets the board, like [`upshift::Builder::board`]. The board is shared memory by which
    /// processes tell Upshift's daemon how urgent their work is, so that the rank that has urgent
    /// work gets the CPU.
    #[must_use]
    pub fn board(mut self, board: Board) -> Launch {
        self.board = board;
        self
    }

    /// Sets the level of the main coroutine.
    #[must_use]
    pub fn main_level(mut self, level: Level) -> Launch {
        self.main_level = level;
        self
    }

    /// Sets the time after which the job is ended if a rank has not polled its coroutine of level
    /// 0, the most urgent level (default 30 s). The limit must be longer than the longest poll.
    #[must_use]
    pub fn hang_limit(mut self, limit: Duration) -> Launch {
        self.limits.hang = limit;
        self
    }

    /// Sets the time for which the surviving ranks continue when a rank has died (default 0.5 s).
    /// `mpirun` kills them after a second.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Launch {
        self.limits.grace = grace;
        self
    }

    /// Lets Open MPI copy long messages directly from one process to another (its *get* and *put*),
    /// which is about twice as fast within a node.
    ///
    /// # Safety
    /// No message may be longer than the buffer that it is received into, and all ranks must give a
    /// collective the lengths that it requires. With direct copies, Open MPI 4.1 copies the whole
    /// message regardless of the length of the buffer; without them it returns an error.
    #[must_use]
    pub unsafe fn single_copy(mut self) -> Launch {
        self.single_copy = true;
        self
    }

    /// Returns the thread support that the library must have.
    #[must_use]
    pub fn threads(&self) -> Threads {
        if self.vcpus == 1 && self.preemption == Preemption::Off {
            Threads::Funneled
        } else {
            Threads::Serialized
        }
    }

    /// Joins the job and runs `main` as the rank's main coroutine; then leaves the job, together
    /// with all other ranks. Must be called once, on the main thread.
    ///
    /// # Errors
    /// Returns the error of `main`, or an error if MPI does not start with
    /// [`threads`](Self::threads), if the runtime does not start, or if operations remain that no
    /// other rank has matched. After an error the process must exit with a status other than 0,
    /// which ends the job; the other ranks report this rank.
    pub fn run<T, E: From<Error>>(
        self,
        main: impl AsyncFnOnce(World) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        configure(self.single_copy)?;
        initialise(self.threads())?;
        let funneled_thread = (self.threads() == Threads::Funneled).then(|| thread::current().id());
        // SAFETY: MPI is initialised, on this thread.
        let (node, service, replies) =
            unsafe { (join_node(self.vcpus)?, duplicate()?, duplicate()?) };
        // SAFETY: as above.
        let lifelines = unsafe { connect_hosts(&node)? };
        let node = Arc::new(node);
        let job = Arc::new(Job::new(funneled_thread, node.clone()));
        // SAFETY: the library defines this value as a constant.
        let world = Comm::adopt(&job, unsafe { sys::RSMPI_COMM_WORLD }, false)?;
        let service = Comm::adopt(&job, service, false)?;
        let replies = Comm::adopt(&job, replies, false)?;

        let runtime = Runtime::builder()
            .vcpus(self.vcpus)
            .preemption(self.preemption)
            .board(self.board)
            .main_level(self.main_level)
            .name("upshift-mpi")
            .build()
            .map_err(system)?;
        let watchdog = Watchdog::start(&job, self.limits, lifelines).map_err(system)?;
        let socket = node.socket().map_err(system)?;

        let result = runtime.block_on(async {
            let progress_task = spawn(progress(job.clone()), Level::at::<0>());
            job.set_progress(runtime.handle(), progress_task.id());
            let progress_task = spawn(
                abort_on_panic(job.clone(), progress_task),
                Level::at::<63>(),
            );
            let heartbeats = spawn(count_heartbeats(node.clone()), Level::at::<0>());
            let wakeups = spawn(receive_wakeups(job.clone(), socket), Level::at::<0>());
            let world = World::new(world, service, replies);
            let output = main(world.clone()).await?;
            leave(&job, &world).await?;
            wakeups.cancel();
            heartbeats.cancel();
            // The progress coroutine ends with the job.
            let _ = progress_task.await;
            Ok::<T, E>(output)
        });
        if result.is_ok() {
            node.own_page().phase.store(PHASE_AWAY, Release);
        }
        drop(watchdog);
        drop(runtime);
        let output = result?;
        job.finish()?;
        Ok(output)
    }
}

pub(crate) fn system(error: std::io::Error) -> Error {
    Error::System(error.to_string())
}

/// Configures Open MPI before it starts. Its own waits at start and end must yield the CPU, or
/// ranks with real-time priority that share a CPU would never start. Messages are copied by *send*
/// only; see [`Launch::single_copy`].
fn configure(single_copy: bool) -> Result<()> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(system)?;
    if threads.count() > 1 {
        return Err(Error::System(
            "other threads run already: launch the rank at the beginning of main".into(),
        ));
    }
    let set = |name: &str, value: &str| {
        // SAFETY: no other thread can read the environment, since the process has one thread, as
        // checked above.
        unsafe { std::env::set_var(format!("OMPI_MCA_{name}"), value) };
    };
    set("mpi_yield_when_idle", "1");
    if !single_copy {
        for transport in ["self", "vader", "sm", "tcp"] {
            set(&format!("btl_{transport}_flags"), "send,inplace");
        }
    }
    Ok(())
}

fn initialise(needed: Threads) -> Result<()> {
    let mut provided = 0;
    // SAFETY: MPI accepts null for the arguments; `provided` is an out-parameter.
    let code = unsafe {
        sys::MPI_Init_thread(
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            needed.number(),
            &mut provided,
        )
    };
    check(code)?;
    let provided = Threads::from_number(provided);
    if provided < needed {
        // SAFETY: MPI is initialised, by the call above.
        unsafe { sys::MPI_Finalize() };
        return Err(Error::Threads { needed, provided });
    }
    Ok(())
}

/// Duplicates the world communicator.
///
/// # Safety
/// MPI is initialised, and this thread may call it.
unsafe fn duplicate() -> Result<sys::MPI_Comm> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut comm = sys::RSMPI_COMM_NULL;
        check(sys::MPI_Comm_dup(sys::RSMPI_COMM_WORLD, &mut comm))?;
        Ok(comm)
    }
}

/// Finds the ranks of this node and opens the file that they share.
///
/// # Safety
/// MPI is initialised, and this thread may call it.
unsafe fn join_node(vcpus: usize) -> Result<Node> {
    // SAFETY: guaranteed by the caller; the out-parameters are locals, and the arrays have the
    // stated lengths.
    unsafe {
        check(sys::MPI_Comm_set_errhandler(
            sys::RSMPI_COMM_WORLD,
            sys::RSMPI_ERRORS_RETURN,
        ))?;
        let (mut node_comm, mut node_rank, mut world_rank, mut size) =
            (sys::RSMPI_COMM_NULL, 0, 0, 0);
        check(sys::MPI_Comm_rank(sys::RSMPI_COMM_WORLD, &mut world_rank))?;
        check(sys::MPI_Comm_split_type(
            sys::RSMPI_COMM_WORLD,
            sys::RSMPI_COMM_TYPE_SHARED,
            world_rank,
            sys::RSMPI_INFO_NULL,
            &mut node_comm,
        ))?;
        check(sys::MPI_Comm_rank(node_comm, &mut node_rank))?;
        check(sys::MPI_Comm_size(node_comm, &mut size))?;
        let mut ranks = vec![0u32; size as usize];
        let own_rank = world_rank as u32;
        check(sys::MPI_Allgather(
            (&raw const own_rank).cast(),
            1,
            sys::RSMPI_UINT32_T,
            ranks.as_mut_ptr().cast(),
            1,
            sys::RSMPI_UINT32_T,
            node_comm,
        ))?;
        // The first rank chooses the file's name, and sends its parts and an error number to the
        // other ranks. The pid alone could equal the pid of a process in another namespace.
        let clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = clock.map_or(0, |time| time.subsec_nanos() as c_int);
        let mut file_id: [c_int; 3] = [std::process::id() as c_int, nanos, 0];
        let path = |[pid, nanos, _]: [c_int; 3]| {
            PathBuf::from(format!("/dev/shm/upshift-mpi-{pid}-{nanos}"))
        };
        if node_rank == 0 {
            let created = node::create(&path(file_id), ranks.len());
            file_id[2] = created
                .as_ref()
                .err()
                .map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        }
        check(sys::MPI_Bcast(
            file_id.as_mut_ptr().cast(),
            file_id.len() as c_int,
            sys::RSMPI_INT32_T,
            0,
            node_comm,
        ))?;
        if file_id[2] != 0 {
            return Err(system(std::io::Error::from_raw_os_error(file_id[2])));
        }
        let node = Node::open(&path(file_id), ranks, node_rank as usize, vcpus).map_err(system);
        check(sys::MPI_Barrier(node_comm))?;
        if node_rank == 0 {
            let _ = std::fs::remove_file(path(file_id));
        }
        sys::MPI_Comm_free(&mut node_comm);
        node
    }
}

/// Connects the first rank of each host to rank 0.
///
/// # Safety
/// MPI is initialised, and this thread may call it.
unsafe fn connect_hosts(node: &Node) -> Result<Vec<Lifeline>> {
    // SAFETY: guaranteed by the caller; the out-parameters are locals.
    unsafe {
        let (mut rank, mut size) = (0, 0);
        check(sys::MPI_Comm_rank(sys::RSMPI_COMM_WORLD, &mut rank))?;
        check(sys::MPI_Comm_size(sys::RSMPI_COMM_WORLD, &mut size))?;
        Lifeline::connect_all(node, rank as u32, size as usize)
    }
}

/// Aborts the process if the progress coroutine ends early, because the rank would hang while its
/// heartbeat continued.
async fn abort_on_panic(job: Arc<Job>, progress_task: JoinHandle<()>) {
    if progress_task.await.is_err() && !job.has_ended() {
        eprintln!("upshift-mpi: the progress coroutine has panicked");
        std::process::abort();
    }
}

/// Counts the heartbeats, which show the watchdogs that this rank polls.
async fn count_heartbeats(node: Arc<Node>) {
    loop {
        node.own_page().heartbeats.fetch_add(1, Relaxed);
        time::sleep(HEARTBEAT_INTERVAL).await;
    }
}

/// Receives the datagrams by which other ranks wake this rank.
async fn receive_wakeups(job: Arc<Job>, socket: std::os::unix::net::UnixDatagram) {
    let Ok(socket) = upshift::net::UnixDatagram::from_std(socket) else {
        return;
    };
    while socket.recv(&mut [0; 8]).await.is_ok() {
        job.with(|table| table.request_look());
    }
}

/// Waits until all ranks are ready to leave, and then for operations that this rank has left
/// running. Handlers continue to serve meanwhile, because other ranks may still wait for them.
async fn leave(job: &Arc<Job>, world: &World) -> Result<()> {
    world.service().barrier().await?;
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    loop {
        match job.with(|table| table.cancel_receives()) {
            0 => break,
            running if Instant::now() > deadline => return Err(Error::Undrained(running)),
            _ => time::sleep(Duration::from_millis(1)).await,
        }
    }
    world.service().barrier().await?;
    world.close();
    job.end();
    Ok(())
}
