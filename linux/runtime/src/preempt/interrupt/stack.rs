//! Provides the alternate stack on which a thread handles the signal that suspends its poll.
//!
//! A poll may run on a stack of a few KiB, for example inside Go, which has no room for the
//! kernel's frame or the handler. The handler therefore runs on an alternate stack (`SA_ONSTACK`),
//! and waits there while its poll is suspended. The stack is in place from [`OnStack::begin`] until
//! that guard is dropped, which restores the thread's former stack. A thread whose own alternate
//! stack is large enough keeps that stack.
//!
//! A stack takes 28 KiB of address space and a guard page on x86-64 with AVX-512. A thread whose
//! polls were suspended has touched two pages of its stack (8 KiB), so 256 such threads hold 2 MiB.

use std::cell::OnceCell;
use std::io;
use std::marker::PhantomData;
use std::ptr::{self, null_mut};

use super::{block_own, unblock_own};

/// Bytes for the handler itself, even if it is interrupted while it waits in the ring. This is
/// twice the handler's need in a debug build (`the_handler_uses_half_of_its_stack_at_most`).
const DEPTH: usize = 16 << 10;

/// Largest number of signal frames on the stack at once. Two are for the signal itself, which may
/// come again while its handler waits in the ring, and one is for a signal of the C library.
const FRAMES: usize = 3;

thread_local! {
    static OWN_STACK: OnceCell<Mapping> = const { OnceCell::new() };
}

/// Returns the bytes of stack that the handler needs on this machine. The size of a signal frame
/// depends on the machine's registers.
fn needed_bytes() -> usize {
    // SAFETY: the call takes no pointers. It returns 0 if the kernel does not say.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    FRAMES * frame.max(libc::MINSIGSTKSZ) + DEPTH
}

/// A stack above a guard page.
struct Mapping {
    address: *mut libc::c_void,
    guard: usize,
    length: usize,
}

impl Mapping {
    fn new() -> io::Result<Mapping> {
        // SAFETY: the call takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let guard = usize::try_from(page).unwrap_or(4096);
        let length = guard + needed_bytes().next_multiple_of(guard);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the mapping is fresh, at an address that the kernel chooses, so it replaces no
        // other mapping.
        let address = unsafe { libc::mmap(null_mut(), length, access, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping {
            address,
            guard,
            length,
        };
        // SAFETY: the range is the first page of the mapping, which nothing uses yet.
        match unsafe { libc::mprotect(address, guard, libc::PROT_NONE) } {
            0 => Ok(mapping),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn as_stack(&self) -> libc::stack_t {
        libc::stack_t {
            ss_sp: self.address.wrapping_byte_add(self.guard),
            ss_flags: 0,
            ss_size: self.length - self.guard,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let current = current();
        if current.ss_flags & libc::SS_DISABLE == 0 && current.ss_sp == self.as_stack().ss_sp {
            set(&libc::stack_t {
                ss_flags: libc::SS_DISABLE,
                ..self.as_stack()
            });
        }
        // SAFETY: `new` mapped this range, and it is not the alternate stack of this thread any
        // more.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

fn current() -> libc::stack_t {
    // SAFETY: all-zero is a valid value of this plain struct, and the call writes only to it.
    unsafe {
        let mut current: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(ptr::null(), &raw mut current);
        current
    }
}

/// Sets the alternate stack. Returns false if the kernel refuses, because the thread is running on
/// its present one.
fn set(stack: &libc::stack_t) -> bool {
    // SAFETY: the stack that `stack` describes stays mapped while it is in place.
    unsafe { libc::sigaltstack(stack, null_mut()) == 0 }
}

/// Allocates the stack of the calling thread, which keeps it until the thread ends.
pub(super) fn provide() -> io::Result<()> {
    let result = OWN_STACK.try_with(|own| {
        if own.get().is_none() {
            let _ = own.set(Mapping::new()?);
        }
        Ok(())
    });
    let explain = |error| {
        let text = format!("no stack for a thread's handler of the signal: {error}");
        crate::notice::explained(&error, text)
    };
    match result {
        Ok(result) => result.map_err(explain),
        Err(_) => Err(io::Error::other("the thread is about to end")),
    }
}

/// Guard of a thread that has [claimed](super::claim) its signal. While the guard lives, the signal
/// is unblocked, and is handled on a stack that is large enough.
pub(crate) struct OnStack {
    /// The thread's former alternate stack, if it was too small and has been replaced.
    previous: Option<libc::stack_t>,
    /// Makes the guard `!Send`.
    not_send: PhantomData<*mut ()>,
}

impl OnStack {
    pub(crate) fn begin() -> OnStack {
        let current = current();
        let is_enough =
            current.ss_flags & libc::SS_DISABLE == 0 && current.ss_size >= needed_bytes();
        let own = OWN_STACK.try_with(|own| own.get().map(Mapping::as_stack));
        let mut previous = None;
        if !is_enough
            && let Ok(Some(own)) = own
            && set(&own)
        {
            previous = Some(current);
        }
        unblock_own();
        OnStack {
            previous,
            not_send: PhantomData,
        }
    }
}

impl Drop for OnStack {
    fn drop(&mut self) {
        let Some(previous) = self.previous else {
            return;
        };
        // The signal is blocked, so that it stays pending until the next `begin` if it is on its
        // way. Without this stack, the handler might have to run on a small one.
        let _ = block_own();
        let own = OWN_STACK.try_with(|own| own.get().map(|own| own.as_stack().ss_sp));
        // The program may have put another stack in place meanwhile.
        if own.is_ok_and(|own| own == Some(current().ss_sp)) {
            set(&previous);
        }
    }
}
