//! Wraps system calls that the standard library does not offer: epoll with nanosecond time-outs,
//! affinity, timer slack, CPU clocks, and the preparation of a child before it runs.
//!
//! This is the only module of the crate with `unsafe`. Each function is one system call, or two on
//! old kernels. The calls require only that pointers are valid until they return: in the SAFETY
//! comments, a *live local* is a variable that exists for the whole call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Flag of a connection with bytes to read.
pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;
/// Flags for edge-triggered reports of all events of a connection.
pub(crate) const EDGE_TRIGGERED: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
/// Flags of a connection whose peer has sent its last byte, or that has failed.
pub(crate) const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// A report of epoll.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) flags: u32,
}

/// An epoll instance and room for its reports.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// Set unless the kernel lacks `epoll_pwait2`, whose time-outs are in ns.
    has_pwait2: bool,
}

impl Epoll {
    /// Creates an instance that takes at most `batch` reports from the kernel at a time.
    pub(crate) fn new(batch: usize) -> io::Result<Epoll> {
        // SAFETY: the call takes no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Epoll {
            // SAFETY: `fd` is a fresh descriptor that nothing else owns.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            events: vec![libc::epoll_event { events: 0, u64: 0 }; batch.max(1)],
            has_pwait2: true,
        })
    }

    /// Reports `flags` of `source` under `token`, until `source` is closed.
    pub(crate) fn add(&self, source: &impl AsFd, token: u64, flags: u32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: flags,
            u64: token,
        };
        let source = source.as_fd().as_raw_fd();
        // SAFETY: both descriptors are open for the call; `event` is a live local.
        check(unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                source,
                &raw mut event,
            )
        })
    }

    /// Waits for at most `timeout` and returns the number of reports; 0 after a signal.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        let room = self.events.len() as libc::c_int;
        let events = self.events.as_mut_ptr();
        // Without a time-out the old call is equivalent and has one argument less to copy.
        if self.has_pwait2 && !timeout.is_zero() {
            let limit = libc::timespec {
                tv_sec: timeout.as_secs() as libc::time_t,
                tv_nsec: timeout.subsec_nanos() as libc::c_long,
            };
            // SAFETY: `events` has room for `room` entries and lives in `self`, `limit` is a live
            // local, and no signal mask is given.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    fd,
                    events,
                    room,
                    &raw const limit,
                    std::ptr::null::<libc::sigset_t>(),
                    0usize,
                )
            };
            match count(n) {
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                    self.has_pwait2 = false;
                }
                result => return result,
            }
        }
        // The time-out is rounded down, because an early return only costs another iteration,
        // whereas a late return misses a send time.
        let millis = timeout.as_millis().min(1000) as libc::c_int;
        // SAFETY: `events` has room for `room` entries and lives in `self`.
        let n = unsafe { libc::epoll_wait(fd, events, room, millis) };
        count(n.into())
    }

    /// Returns report `i` of the last wait; `i` must be below its count.
    pub(crate) fn ready(&self, i: usize) -> Ready {
        let event = self.events[i];
        Ready {
            token: event.u64,
            flags: event.events,
        }
    }
}

/// Returns the result of a wait as a count; a signal counts as 0 reports.
fn count(n: libc::c_long) -> io::Result<usize> {
    if n >= 0 {
        return Ok(n as usize);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted {
        return Ok(0);
    }
    Err(error)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Moves the calling thread, but not the threads that it starts, to SCHED_FIFO.
pub(crate) fn elevate(priority: u8) -> io::Result<()> {
    let param = libc::sched_param {
        sched_priority: priority.into(),
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `param` is a live local; 0 means the calling thread.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const param) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let advice = "the client may not use SCHED_FIFO; run it as root, or without `--elevate`";
    Err(io::Error::new(error.kind(), format!("{error}: {advice}")))
}

pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    let invalid = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot pin to CPU {cpu} ({error}): name one that `taskset -p $$` allows"),
        )
    };
    set_affinity(&[cpu]).map_err(invalid)
}

/// Binds the calling thread to `cpus`. Does not allocate, because it also runs between fork and
/// exec.
pub(crate) fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: `cpu` is below CPU_SETSIZE, so the bit lies inside the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is a live local of the size given; 0 means the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) })
}

pub(crate) fn affinity() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live local of the size given; 0 means the calling thread.
    check(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) })?;
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: the numbers are below CPU_SETSIZE, so the bits lie inside the set.
    Ok(all
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

pub(crate) fn pin_program(command: &mut Command, cpu: usize) {
    // SAFETY: the closure runs between fork and exec, where it may neither allocate nor lock. It
    // makes one system call and touches only its own stack.
    unsafe { command.pre_exec(move || set_affinity(&[cpu])) };
}

/// Lets the kernel kill the program of `command` when the thread that starts it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let tie = move || {
        // SAFETY: the call takes no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // The parent may have died before the call above; then nothing would kill this process.
        // SAFETY: the call takes no pointers.
        if unsafe { libc::getppid() } as u32 != parent {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec. There it may neither allocate nor lock: it
    // makes two system calls and touches a captured integer.
    unsafe { command.pre_exec(tie) };
}

/// Sends SIGTERM to a child that has not been waited for.
pub(crate) fn terminate(pid: u32) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) })
}

/// Lets the timers of the calling thread expire on time; by default the kernel may add 50 µs.
pub(crate) fn minimize_timer_slack() {
    // SAFETY: the call takes no pointers. Failure only costs precision.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Lets a socket that is bound to an address without a port get its port from `connect`, so that
/// ports are counted per target, as without a bind.
pub(crate) fn choose_port_on_connect(socket: &impl AsFd) -> io::Result<()> {
    let enabled: libc::c_int = 1;
    // SAFETY: the descriptor is open for the call; `enabled` is a live local of the size given.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const enabled).cast(),
            size_of_val(&enabled) as libc::socklen_t,
        )
    })
}

/// Raises the soft limit on open files to at least `needed`, and the hard limit where the process
/// has the right to (`CAP_SYS_RESOURCE`).
///
/// Returns the limit that now holds.
pub(crate) fn raise_open_files(needed: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live local.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_max < needed {
        let raised = libc::rlimit {
            rlim_cur: needed,
            rlim_max: needed,
        };
        // SAFETY: `raised` is a live local.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
            return Ok(needed);
        }
    }
    if limit.rlim_cur < needed && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = needed.min(limit.rlim_max);
        // SAFETY: `limit` is a live local.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    Ok(limit.rlim_cur)
}

/// Returns the exact CPU time of all threads in process `pid`, including ended threads.
pub(crate) fn process_cpu(pid: u32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a live local.
    let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a live local.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Returns the CPU time of the programs that this process has started and that have ended.
pub(crate) fn children_cpu() -> io::Result<Duration> {
    let (user, system) = usage(libc::RUSAGE_CHILDREN)?;
    Ok(user + system)
}

/// Returns the CPU time of the calling thread; zero if the kernel does not report it.
pub(crate) fn thread_clock() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Lets the calling thread run only when no other thread wants its CPU (SCHED_IDLE).
pub(crate) fn idle_policy() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` is a live local; 0 means the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) })
}

pub(crate) fn thread_cpu() -> io::Result<(Duration, Duration)> {
    usage(libc::RUSAGE_THREAD)
}

fn usage(whose: libc::c_int) -> io::Result<(Duration, Duration)> {
    // SAFETY: an all-zero rusage is valid, because it holds only integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live local.
    check(unsafe { libc::getrusage(whose, &raw mut usage) })?;
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    Ok((time(usage.ru_utime), time(usage.ru_stime)))
}

/// Takes the right to SCHED_FIFO from the program of `command`.
pub(crate) fn without_real_time(command: &mut Command) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the closure runs between fork and exec, where it may neither allocate nor lock. It
    // makes one system call, with a pointer to its own memory.
    unsafe {
        command.pre_exec(move || check(libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const none)));
    }
}
