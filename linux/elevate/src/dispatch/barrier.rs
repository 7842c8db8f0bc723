//! An asymmetric memory barrier. Of two threads, the one that needs the barrier less often pays for
//! it.
//!
//! Suppose that one thread very often sets a flag and loads another flag, and that a second thread
//! seldom does the reverse. Both need a full barrier between the two steps; otherwise each may miss
//! the other's flag. `membarrier` makes all running threads of the process execute a full barrier.
//! If the second thread makes this call, the first thread needs only a compiler barrier. The call
//! costs a system call, and an interrupt for each other CPU on which a thread of the process is
//! running.

use std::io::{self, Write};

const QUERY: libc::c_int = 0;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: the call takes no pointers, so it has no preconditions.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Announces that this process uses [`heavy_barrier`]. May be called more than once.
///
/// # Errors
/// `Unsupported` without `membarrier` (Linux before 4.14, or a seccomp filter), with advice.
pub fn register_barrier() -> io::Result<()> {
    let commands = membarrier(QUERY).unwrap_or(0);
    if commands & libc::c_long::from(PRIVATE_EXPEDITED) != 0
        && membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok()
    {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "membarrier is not available: use Linux 4.14 or newer, and allow membarrier in the seccomp profile",
    ))
}

/// Makes every running thread of the process pass a full memory barrier, the caller included.
///
/// # Aborts
/// Ends the process with a message on standard error if the system call fails. It fails without a
/// successful [`register_barrier`], or if the process has forbidden `membarrier` since. The process
/// must end, because continuing would be a data race, no other barrier can replace this one once
/// threads rely on it, and a panic would leave the callers' locks held.
pub fn heavy_barrier() {
    if let Err(error) = membarrier(PRIVATE_EXPEDITED) {
        end_process(&error);
    }
}

/// Reports the error and aborts. Allocates nothing and takes no lock, because a suspended poll may
/// hold the allocator's lock or another.
#[cold]
fn end_process(error: &io::Error) -> ! {
    let mut text = [0u8; 256];
    let mut unwritten = &mut text[..];
    let number = error.raw_os_error().unwrap_or(0);
    // A message that is too long is truncated.
    let _ = writeln!(
        unwritten,
        "upshift: membarrier worked when the process started and fails now (errno {number}): allow the system call membarrier \
         in the seccomp filter that was installed since"
    );
    let unwritten_len = unwritten.len();
    // SAFETY: the pointer is valid for the given length, which is at most that of `text`.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len() - unwritten_len) };
    std::process::abort()
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
