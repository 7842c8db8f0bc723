//! A barrier that one side pays for the other.
//!
//! A thread that very often raises a flag and looks at another, and a thread that seldom does the reverse, need a full
//! barrier between the two steps on both sides, or each may miss the other's flag. `membarrier` makes all running threads
//! of the process execute one, so the frequent side needs a compiler barrier only. 0.2 µs, and an interrupt for each other
//! CPU on which a thread of the process is running.

use std::io;

const QUERY: libc::c_int = 0;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Announces that this process uses [`heavy_barrier`]. Once is enough, more do no harm.
///
/// # Errors
/// `Unsupported` without `membarrier` (Linux before 4.14, or a seccomp filter), with what to change.
pub fn register_barrier() -> io::Result<()> {
    let known = membarrier(QUERY).unwrap_or(0);
    if known & libc::c_long::from(PRIVATE_EXPEDITED) != 0
        && membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok()
    {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "membarrier is not to be had: use Linux 4.14 or newer, and allow membarrier in the seccomp profile",
    ))
}

/// Makes every running thread of the process pass a full memory barrier, the caller included.
///
/// # Panics
/// If [`register_barrier`] has not succeeded before: going on would be a data race.
pub fn heavy_barrier() {
    let done = membarrier(PRIVATE_EXPEDITED);
    assert!(
        done.is_ok(),
        "membarrier was registered and now fails: {done:?}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_barrier_works_after_registration() {
        register_barrier().unwrap();
        register_barrier().unwrap();
        heavy_barrier();
    }
}
