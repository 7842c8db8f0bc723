//! The entry point of the child processes of these tests. The environment variable [`ROLE`] selects
//! the behaviour of a child; other variables have its settings.

use std::path::PathBuf;

use upshift_board::{Board, NO_LEVEL, Role, ThreadSpec, Vcpu, VcpuSpec};
use upshift_daemon::machine::{Machine, Real};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys};

use crate::client::Registration;
use crate::process::{ROLE, monotonic};

/// Runs the role of a child process. Returns at once if no role is set, because this function then
/// runs as one of the tests.
#[test]
fn entry_point() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    // No test takes this long, even on a slow machine.
    limit_lifetime(300);
    // A program that a rule should match has no limit, because the daemon does not elevate a
    // process with a limit.
    let limit = match setting("LIMIT").parse() {
        Ok(us) => Some(us),
        Err(_) if ROLES_WITHOUT_LIMIT.contains(&role.as_str()) => None,
        Err(_) => Some(2_000_000),
    };
    limit_fifo_time(limit);
    become_user();
    if setting("UNNAMED") == "1" {
        // After a change of user, the files of a process in `/proc` belong to root until the
        // process is dumpable again.
        // SAFETY: the call has only integer arguments.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        std::fs::write(format!("/proc/{}/comm", std::process::id()), b"\xff\xfe").unwrap();
    }
    match role.as_str() {
        "burner" => burner(true),
        "bystander" => burner(false),
        "scripted-client" => crate::scripted_client::scripted_client(),
        "rejoining-client" => crate::scripted_client::rejoining_client(),
        "tid-reuse" => crate::tid_reuse::tid_reuse(),
        "daemon" => daemon(std::sync::Arc::new(Real)),
        "gap-meter" => gap_meter(),
        "idle-claimant" => idle_claimant(),
        "page-mover" => crate::kernel::attackers::page_mover(),
        "thread-mover" => crate::kernel::attackers::thread_mover(),
        "namespace-switcher" => crate::kernel::attackers::namespace_switcher(),
        "lender" => crate::lent_priority::attackers::lender(),
        "dispatchers" => crate::cpu_share::attackers::dispatchers(),
        "scribbler" => crate::shared_page::scribbler(),
        "alternating-spinner" => crate::cpu_share::attackers::alternating_spinner(),
        "reregistering-spinner" => crate::cpu_share::attackers::reregistering_spinner(),
        "successive-threads" => crate::cpu_share::attackers::successive_threads(),
        "pause-spinners" => crate::cpu_share::attackers::pause_spinners(),
        "process-lender" => crate::lent_priority::attackers::process_lender(),
        "self-demoter" => crate::cpu_share::attackers::self_demoter(),
        "kernel-thread-starter" => crate::elevation::kernel_thread_starter(),
        "pid-namespace-client" => crate::identity::attackers::pid_namespace_client(),
        "level-flapper" => crate::cpu_share::floods::level_flapper(),
        "sleeping-threads" => crate::rules_thread::sleeping_threads(),
        "vcpu-flood" => crate::registration::attackers::vcpu_flood(),
        "slow-census-reader" => crate::status_socket::slow_census_reader(),
        "user-changer" => crate::identity::attackers::user_changer(),
        "spinners" => crate::budgets::attackers::spinners(),
        "thread-churner" => crate::budgets::attackers::thread_churner(),
        "forker" => crate::budgets::attackers::forker(),
        "renamer" => crate::budgets::attackers::renamer(),
        "lock-chain" => crate::lent_priority::attackers::lock_chain(),
        "traced" => crate::cpu_share::attackers::traced(),
        "lease-holder" => crate::proc_files::lease_holder(),
        "process-flood" => crate::budgets::attackers::process_flood(),
        "program-changer" => crate::cpu_share::attackers::program_changer(),
        "connection-passer" => crate::identity::attackers::connection_passer(),
        "sleeping-parent" => sleeping_parent(),
        "many-users" => crate::registration::attackers::many_users(),
        "pause-lender" => crate::lent_priority::attackers::pause_lender(),
        "self-executor" => crate::budgets::attackers::self_executor(),
        "descriptor-sender" => crate::registration::attackers::descriptor_sender(),
        "group-leaver" => crate::identity::attackers::group_leaver(),
        "census-flood" => crate::registration::attackers::census_flood(),
        "group-member" => crate::identity::attackers::group_member(),
        "main-thread-ender" => crate::main_thread::main_thread_ender(),
        "packet-flood" => crate::cpu_share::floods::packet_flood(),
        "name-changer" => crate::rules_thread::name_changer(),
        "connection-flood" => crate::registration::attackers::connection_flood(),
        "silent-connections" => crate::status_socket::silent_connections(),
        "update-flood" => crate::registration::attackers::update_flood(),
        "mass-level-changer" => crate::cpu_share::floods::mass_level_changer(),
        "attribute-setter" => crate::shared_page::attribute_setter(),
        "double-registration" => crate::assign::double_registration(),
        "panicking-daemon" => daemon(crate::faults::panicking_calls()),
        other => panic!("no role {other}"),
    }
}

/// Roles of programs that a rule of a test may match, so that they have no limit on their time in
/// SCHED_FIFO. They end by themselves after a short time.
const ROLES_WITHOUT_LIMIT: [&str; 11] = [
    "double-registration",
    "self-executor",
    "gap-meter",
    "spinners",
    "thread-churner",
    "forker",
    "renamer",
    "sleeping-threads",
    "sleeping-parent",
    "process-flood",
    "main-thread-ender",
];

/// Limits the time for which this process may occupy a CPU in SCHED_FIFO (`RLIMIT_RTTIME`), µs;
/// `None` removes the limit.
fn limit_fifo_time(limit: Option<u64>) {
    let us = limit.unwrap_or(libc::RLIM_INFINITY);
    let limit = libc::rlimit {
        rlim_cur: us,
        rlim_max: us,
    };
    // SAFETY: `limit` is valid for the duration of the call.
    unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit) };
}

/// Ends this process after `seconds`, or when its parent dies.
fn limit_lifetime(seconds: u32) {
    // SAFETY: the calls have only integer arguments.
    unsafe {
        libc::alarm(seconds);
        // The kernel schedules sessions as groups (autogroup). In a session of its own, this
        // process is not charged for other processes, and other processes and the canaries are not
        // charged for this process.
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

fn become_user() {
    let Ok(user) = setting("USER").parse::<u32>() else {
        return;
    };
    // SAFETY: the null pointer is for an empty list of groups. libc changes all threads.
    let failed = unsafe {
        libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(user, user, user) != 0
            || libc::setresuid(user, user, user) != 0
    };
    assert!(!failed, "{}", std::io::Error::last_os_error());
}

pub(crate) fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

pub(crate) fn number(name: &str) -> u64 {
    setting(name).parse().unwrap()
}

pub(crate) fn pin(cpu: usize) {
    Kernel
        .sched_setaffinity(0, &CpuSet::only(cpu).unwrap())
        .unwrap();
}

/// Waits for a line from the parent, and returns the deadline in it; 0 if there is none.
pub(crate) fn wait_for_parent() -> u64 {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().parse().unwrap_or(0)
}

/// Pins the calling thread to `CPU`, and registers it as the only worker of a vCPU.
pub(crate) fn join() -> (Board, Vcpu) {
    let cpu = number("CPU") as usize;
    pin(cpu);
    let board = Board::new().unwrap();
    let threads = vec![ThreadSpec {
        tid: current_tid(),
        role: Role::Worker,
    }];
    let spec = VcpuSpec { cpu, threads };
    board
        .join(&PathBuf::from(setting("SOCKET")), &[spec])
        .unwrap();
    let vcpu = board.vcpu(0).unwrap();
    (board, vcpu)
}

/// Runs a daemon until the parent sends a line or kills this process.
fn daemon(machine: std::sync::Arc<dyn Machine>) {
    if let Ok(errors) = std::fs::File::create(setting("ERRORS")) {
        rustix::stdio::dup2_stderr(errors).unwrap();
    }
    if let Ok(max_files) = setting("FILES").parse() {
        let limit = libc::rlimit {
            rlim_cur: max_files,
            rlim_max: max_files,
        };
        // SAFETY: `limit` is valid for the duration of the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
    let config = upshift_daemon::Config {
        socket: PathBuf::from(setting("SOCKET")),
        ..upshift_daemon::Config::parse(&setting("CONFIG")).unwrap()
    };
    let daemon = upshift_daemon::Daemon::builder(config).machine(machine);
    let _daemon = daemon.start().unwrap();
    println!("ready");
    wait_for_parent();
}

/// Returns zeroed memory that this process shares with its forked children.
///
/// # Safety
/// A `T` of zero bytes must be valid.
pub(crate) unsafe fn shared_memory<T: Sync>() -> &'static T {
    const { assert!(size_of::<T>() <= 4096) };
    // SAFETY: the page is newly mapped, zeroed and never unmapped. The caller guarantees that zero
    // bytes are a valid `T`.
    unsafe {
        let address = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(address, libc::MAP_FAILED);
        &*address.cast()
    }
}

/// Returns the CPU time of the calling thread, ns.
pub(crate) fn cpu_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writes for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Spins until the parent's deadline, as a client at `LEVEL` if `registered`, and prints the CPU
/// time that it has used.
fn burner(registered: bool) {
    let joined = registered.then(join);
    if !registered {
        pin(number("CPU") as usize);
    }
    println!("ready");
    let deadline = wait_for_parent();
    if let Some((_, vcpu)) = &joined {
        vcpu.line().set_running(number("LEVEL") as u8);
        vcpu.settle().unwrap();
    }
    let before = cpu_time();
    while monotonic() < deadline {
        std::hint::spin_loop();
    }
    let used = cpu_time() - before;
    if let Some((_, vcpu)) = &joined {
        vcpu.line().set_running(NO_LEVEL);
        vcpu.settle().unwrap();
    }
    println!("used {}", used / 1000);
    wait_for_parent();
}

/// Starts a thread in addition to the test harness's threads, and a child process; all of them
/// sleep. The child ends with this process, unless `ORPHAN` is set.
fn sleeping_parent() {
    let orphan = std::env::var_os("ORPHAN").is_some();
    std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60)));
    // SAFETY: the child makes only system calls before it ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the calls have only integer arguments.
        unsafe {
            if !orphan {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
            libc::sleep(60);
            libc::_exit(0);
        }
    }
    println!("child {child}");
    wait_for_parent();
}

/// Spins on `CPU` until the deadline. Prints the CPU time that it has used, and the longest time
/// for which it did not have the CPU, both in µs.
pub(crate) fn gap_meter() {
    pin(number("CPU") as usize);
    println!("ready");
    let deadline = wait_for_parent();
    let before = cpu_time();
    let (mut last, mut longest) = (monotonic(), 0);
    while last < deadline {
        let now = monotonic();
        longest = longest.max(now - last);
        last = now;
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("longest {}", longest / 1000);
    wait_for_parent();
}

/// Publishes that it runs at `LEVEL` on `CPU`, but sleeps. If `THREADS` is 0, it registers no
/// thread.
pub(crate) fn idle_claimant() {
    pin(number("CPU") as usize);
    let threads = [(current_tid(), Role::Worker)];
    let without_threads = setting("THREADS") == "0";
    let registration = Registration::new(if without_threads { &[] } else { &threads });
    println!("ready");
    wait_for_parent();
    registration.run(NO_LEVEL);
}
