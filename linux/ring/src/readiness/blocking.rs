//! Makes the calls that may block, on threads of an [`Offload`](crate::Offload).

use crate::readiness::calls::{Vectors, connect_at_once, result};
use crate::readiness::sqe::{DATASYNC, Sqe};
use io_uring::opcode;
use libc::{c_char, c_int, c_long};
use std::thread;
use std::time::Duration;

/// Returns whether an operation always goes to a thread that may block.
pub(crate) fn is_blocking(opcode: u8) -> bool {
    matches!(
        opcode,
        opcode::Fsync::CODE
            | opcode::OpenAt::CODE
            | opcode::OpenAt2::CODE
            | opcode::Statx::CODE
            | opcode::Ftruncate::CODE
            | opcode::RenameAt::CODE
            | opcode::UnlinkAt::CODE
            | opcode::MkDirAt::CODE
            | opcode::SymlinkAt::CODE
            | opcode::LinkAt::CODE
    )
}

/// Time between two attempts to connect to a local socket whose queue is full.
const CONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Makes the call, and repeats it while signals interrupt it.
pub(crate) fn make_call(sqe: &Sqe, is_cancelled: impl Fn() -> bool) -> i32 {
    set_io_priority(sqe);
    loop {
        let result = call(sqe);
        if result == -libc::EAGAIN && sqe.opcode == opcode::Connect::CODE {
            thread::sleep(CONNECT_INTERVAL);
        } else if result != -libc::EINTR {
            return result;
        }
        if is_cancelled() {
            return -libc::ECANCELED;
        }
    }
}

fn set_io_priority(sqe: &Sqe) {
    use std::cell::Cell;
    thread_local!(static PRIORITY: Cell<u16> = const { Cell::new(0) });
    let has_priority = matches!(
        sqe.opcode,
        opcode::Read::CODE | opcode::Write::CODE | opcode::Readv::CODE | opcode::Writev::CODE
    );
    if has_priority && PRIORITY.replace(sqe.ioprio) != sqe.ioprio {
        /// `IOPRIO_WHO_PROCESS`, with which 0 stands for the calling thread.
        const PROCESS: c_int = 1;
        // The priority is advice, so a refusal is ignored.
        // SAFETY: the call takes no pointers, so it has no preconditions.
        unsafe { libc::syscall(libc::SYS_ioprio_set, PROCESS, 0, c_int::from(sqe.ioprio)) };
    }
}

fn call(sqe: &Sqe) -> i32 {
    let path = sqe.pointer::<c_char>().cast_const();
    let second = sqe.second_pointer::<c_char>().cast_const();
    let (fd, flags, length) = (sqe.fd, sqe.op_flags.cast_signed(), sqe.length.cast_signed());
    // SAFETY: the memory that the entry points to is valid until the completion, which comes after
    // this call. For each operation, the arguments are the fields of `struct io_uring_sqe` that the
    // kernel uses.
    unsafe {
        match sqe.opcode {
            opcode::Read::CODE | opcode::Readv::CODE => read(sqe),
            opcode::Write::CODE | opcode::Writev::CODE => write(sqe),
            opcode::Connect::CODE => connect_at_once(sqe),
            opcode::Fsync::CODE if sqe.op_flags & DATASYNC != 0 => result(libc::fdatasync(fd)),
            opcode::Fsync::CODE => result(libc::fsync(fd)),
            opcode::OpenAt::CODE => result(libc::openat(fd, path, flags, sqe.length)),
            opcode::OpenAt2::CODE => {
                let how = sqe.second_pointer::<libc::open_how>();
                let size = sqe.length as usize;
                result(libc::syscall(libc::SYS_openat2, fd, path, how, size))
            }
            opcode::Statx::CODE => {
                let answer = sqe.second_pointer::<libc::statx>();
                result(libc::statx(fd, path, flags, sqe.length, answer))
            }
            opcode::Ftruncate::CODE => {
                result(libc::ftruncate(fd, sqe.offset.cast_signed() as libc::off_t))
            }
            opcode::RenameAt::CODE => result(rename(fd, path, length, second, flags)),
            opcode::UnlinkAt::CODE => result(libc::unlinkat(fd, path, flags)),
            opcode::MkDirAt::CODE => result(libc::mkdirat(fd, path, sqe.length)),
            opcode::SymlinkAt::CODE => result(libc::symlinkat(path, fd, second)),
            opcode::LinkAt::CODE => result(libc::linkat(fd, path, length, second, flags)),
            _ => -libc::EOPNOTSUPP,
        }
    }
}

/// Calls `renameat2`.
///
/// # Safety
/// Both paths are valid C strings.
unsafe fn rename(
    from: c_int,
    old: *const c_char,
    to: c_int,
    new: *const c_char,
    flags: c_int,
) -> c_long {
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { libc::syscall(libc::SYS_renameat2, from, old, to, new, flags) }
}

/// Reads at the offset of the entry.
///
/// # Safety
/// The buffers can be written.
unsafe fn read(sqe: &Sqe) -> i32 {
    let vectors = Vectors::from_sqe(sqe);
    let positioned_call = |offset: i64| {
        // SAFETY: the caller upholds the requirements of this call.
        result(
            unsafe { libc::preadv2(sqe.fd, vectors.pointer(), vectors.count(), offset, 0) } as i64,
        )
    };
    call_at_offset(sqe, positioned_call, || {
        // SAFETY: the caller upholds the requirements of this call.
        result(unsafe { libc::readv(sqe.fd, vectors.pointer(), vectors.count()) } as i64)
    })
}

/// Writes at the offset of the entry.
///
/// # Safety
/// The buffers can be read.
unsafe fn write(sqe: &Sqe) -> i32 {
    let vectors = Vectors::from_sqe(sqe);
    let positioned_call = |offset: i64| {
        // SAFETY: the caller upholds the requirements of this call.
        result(
            unsafe { libc::pwritev2(sqe.fd, vectors.pointer(), vectors.count(), offset, 0) } as i64,
        )
    };
    call_at_offset(sqe, positioned_call, || {
        // SAFETY: the caller upholds the requirements of this call.
        result(unsafe { libc::writev(sqe.fd, vectors.pointer(), vectors.count()) } as i64)
    })
}

/// Makes the call at the offset of the entry. Makes the plain call instead if the offset stands for
/// the file's own position, or if the descriptor has no position.
fn call_at_offset(
    sqe: &Sqe,
    positioned_call: impl Fn(i64) -> i32,
    plain_call: impl Fn() -> i32,
) -> i32 {
    if sqe.offset == u64::MAX {
        return plain_call();
    }
    match positioned_call(sqe.offset.cast_signed()) {
        result if result == -libc::ESPIPE => plain_call(),
        result => result,
    }
}
