//! Identifies threads: a number that no later thread with the same tid has (the thread's *birth*),
//! and the process that a thread belongs to.
//!
//! The kernel gives every thread a number of its own, the inode of its pidfd (Linux 6.9), and
//! reports the thread's process through a pidfd (6.13). Neither requires a lookup of a path. Older
//! kernels have this data only in files of `/proc`. While a process ends, a lookup of its name may
//! wait in a loop for another thread that is in the middle of the same lookup. The loop never ends
//! if that other thread is on the same CPU and has a lower priority.
//!
//! The functions allocate nothing and take no lock.

use std::ffi::CStr;
use std::io;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_long};

use super::{OPEN_FLAGS, Tid, check, current_tid};

pub(super) fn birth(tid: Tid) -> io::Result<u64> {
    if !pidfds_have_numbers()? {
        return start_time(tid);
    }
    let status = with_pidfd(tid, |fd| {
        // SAFETY: zeroes are a valid value, because the structure consists of integers.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for the type that the call writes.
        check(c_long::from(unsafe { libc::fstat(fd, &raw mut status) }))?;
        Ok(status)
    });
    match status {
        // The thread has ended, because its number is now only the id of a group or session.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
        status => status.map(|status| status.st_ino),
    }
}

pub(super) fn leader(tid: Tid) -> io::Result<Tid> {
    match with_pidfd(tid, leader_by_pidfd) {
        Err(error) if is_unknown(&error) => leader_by_file(tid),
        leader => leader,
    }
}

/// The kernel's `struct pidfd_info` in its first version (`linux/pidfd.h`).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    pid: u32,
    leader: u32,
    parent: u32,
    ids_and_exit_code: [u32; 9],
}

/// Number of the `ioctl` that reads a [`PidfdInfo`] (`linux/pidfd.h`).
const PIDFD_GET_INFO: u64 = 3 << 30 | (size_of::<PidfdInfo>() as u64) << 16 | 0xff << 8 | 11;
/// Flag of `mask` that requests the ids.
const PIDFD_INFO_PID: u64 = 1;

fn leader_by_pidfd(fd: c_int) -> io::Result<Tid> {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_PID,
        ..PidfdInfo::default()
    };
    // SAFETY: the pointer is valid for the size that the number of the call encodes.
    check(c_long::from(unsafe {
        libc::ioctl(fd, PIDFD_GET_INFO as _, &raw mut info)
    }))?;
    Ok(info.leader as Tid)
}

/// Reads the leader from `/proc/<tid>/status`.
fn leader_by_file(tid: Tid) -> io::Result<Tid> {
    let mut path = [0u8; 32];
    let mut status = [0u8; 512];
    let length = read_into(path_of(tid, b"/status\0", &mut path), &mut status)?;
    let mut lines = status[..length].split(|&byte| byte == b'\n');
    let digits = lines.find_map(|line| line.strip_prefix(b"Tgid:\t"));
    let number = digits.and_then(number);
    number
        .map(|number| number as Tid)
        .ok_or_else(not_understood)
}

/// Returns whether this kernel lacks the call.
fn is_unknown(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EPERM)
    )
}

/// Calls `query` with a pidfd of the thread.
fn with_pidfd<T>(tid: Tid, query: impl FnOnce(c_int) -> io::Result<T>) -> io::Result<T> {
    /// Flag of `pidfd_open`: a pidfd of a thread rather than of a process (`linux/pidfd.h`).
    const PIDFD_THREAD: c_int = libc::O_EXCL;
    let tid = if tid == 0 { current_tid() } else { tid };
    // SAFETY: the call takes only integers. The descriptor is close-on-exec.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, tid, PIDFD_THREAD) })? as c_int;
    let answer = query(fd);
    // SAFETY: `fd` was opened above and has no other user.
    unsafe { libc::close(fd) };
    answer
}

/// Returns whether pidfds have inodes of their own. Tested once, on the calling thread.
fn pidfds_have_numbers() -> io::Result<bool> {
    /// File system type of pidfds (`linux/magic.h`).
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Relaxed) {
        YES => return Ok(true),
        NO => return Ok(false),
        _ => {}
    }
    let kind = with_pidfd(0, |fd| {
        // SAFETY: zeroes are a valid value, because the structure consists of integers.
        let mut status: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for the type that the call writes.
        check(c_long::from(unsafe { libc::fstatfs(fd, &raw mut status) }))?;
        Ok(status.f_type as u64)
    });
    let has_numbers = match kind {
        Ok(kind) => kind == PID_FS_MAGIC,
        Err(error) if is_unknown(&error) => false,
        Err(error) => return Err(error),
    };
    ANSWER.store(if has_numbers { YES } else { NO }, Relaxed);
    Ok(has_numbers)
}

/// Reads a thread's start time, in clock ticks since boot, from `/proc/<tid>/stat`.
fn start_time(tid: Tid) -> io::Result<u64> {
    let mut path = [0u8; 32];
    let mut stat = [0u8; 1024];
    let length = read_into(path_of(tid, b"/stat\0", &mut path), &mut stat)?;
    parse_start_time(&stat[..length]).ok_or_else(not_understood)
}

/// Returns whether the thread sleeps or is stopped by a signal, a tracer or its cgroup, and so is
/// on no run queue. Returns false if its state cannot be read. Allocates nothing.
pub fn sleeps(tid: Tid) -> bool {
    let mut path = [0u8; 32];
    let mut stat = [0u8; 128];
    let read = read_into(path_of(tid, b"/stat\0", &mut path), &mut stat);
    read.is_ok_and(|length| {
        state(&stat[..length]).is_some_and(|state| !matches!(state, b'R' | b'Z' | b'X' | b'x'))
    })
}

/// Returns field 3 of `/proc/<tid>/stat`.
fn state(stat: &[u8]) -> Option<u8> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end_of_name + 2).copied()
}

fn not_understood() -> io::Error {
    io::Error::from_raw_os_error(libc::EPROTO)
}

/// Writes `/proc/<tid>` and `file` into `buffer` and returns it as a C string. 0 is the calling
/// thread.
fn path_of<'a>(tid: Tid, file: &[u8], buffer: &'a mut [u8; 32]) -> &'a CStr {
    let tid = if tid <= 0 { current_tid() } else { tid };
    let mut digits = [0u8; 10];
    let mut start = digits.len();
    let mut rest = tid.unsigned_abs();
    while rest > 0 {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut length = 0;
    for part in [&b"/proc/"[..], &digits[start..], file] {
        buffer[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    CStr::from_bytes_until_nul(&buffer[..]).unwrap_or(c"/proc/thread-self/stat")
}

/// Reads the beginning of a file, without allocation. Returns the number of bytes.
fn read_into(path: &CStr, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer is to a string that ends with a NUL.
    let fd = check(c_long::from(unsafe {
        libc::open(path.as_ptr(), OPEN_FLAGS)
    }))? as c_int;
    // SAFETY: the buffer is writable for its length.
    let read = check(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } as c_long);
    // SAFETY: `fd` was opened above and has no other user.
    unsafe { libc::close(fd) };
    Ok(read? as usize)
}

/// Returns field 22 of `/proc/<tid>/stat`. Fields are counted from the last `)`, because the name
/// in field 2 may contain blanks and brackets.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let field = stat
        .get(after_name..)?
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|field| !field.is_empty())
        .nth(22 - 3)?;
    number(field)
}

fn number(digits: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_survives_hostile_names() {
        let fields: Vec<String> = (3..=52).map(|n| (n * 10).to_string()).collect();
        for name in ["sh", "a b", "x) R 1 2 3", "((("] {
            let stat = format!("4711 ({name}) {}\n", fields.join(" "));
            assert_eq!(parse_start_time(stat.as_bytes()), Some(220), "{name}");
        }
        for broken in [
            "",
            "1 (sh",
            "1 (sh) S 1",
            "1 (sh) S 1 2 3 4 5 6 7 8 9 10 1 2 3 4 5 6 7 8 x",
        ] {
            assert_eq!(parse_start_time(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn the_state_survives_hostile_names() {
        for name in ["sh", "a b", "x) S 1 2 3", "((("] {
            let stat = format!("4711 ({name}) R 1 2 3\n");
            assert_eq!(state(stat.as_bytes()), Some(b'R'), "{name}");
        }
        assert_eq!(state(b"1 (sh"), None);
        assert!(!sleeps(0), "this thread runs");
    }

    #[test]
    fn tid_0_is_the_calling_thread() {
        for number_of in [birth, start_time] {
            let own = number_of(0).unwrap();
            assert!(own > 0);
            assert_eq!(own, number_of(current_tid()).unwrap());
        }
    }

    #[test]
    fn paths_hold_the_longest_tid() {
        let mut buffer = [0; 32];
        assert_eq!(
            path_of(i32::MAX, b"/stat\0", &mut buffer),
            c"/proc/2147483647/stat"
        );
        assert_eq!(path_of(7, b"/status\0", &mut buffer), c"/proc/7/status");
    }

    #[test]
    fn threads_differ_and_know_their_leader() {
        let own = std::process::id() as Tid;
        let identity = |tid| (birth(tid).unwrap(), leader(tid).unwrap());
        let own_identity = identity(0);
        let other_identity = std::thread::spawn(move || identity(current_tid()))
            .join()
            .unwrap();
        assert_ne!(own_identity.0, other_identity.0);
        assert_eq!((own_identity.1, other_identity.1), (own, own));
        assert_eq!(leader_by_file(0).unwrap(), own);
    }

    #[test]
    fn a_thread_that_has_ended_has_no_number() {
        let tid = std::thread::spawn(current_tid).join().unwrap();
        let has_ended = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            birth(tid).is_err_and(|error| crate::restore::is_gone(&error))
        });
        assert!(has_ended);
        for error in [birth(i32::MAX).unwrap_err(), leader(i32::MAX).unwrap_err()] {
            assert!(crate::restore::is_gone(&error), "{error}");
        }
    }
}
