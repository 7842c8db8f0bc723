//! The system calls of client and daemon: memory files, mappings, and packets with descriptors.
//!
//! Each function is one or a few system calls. Only sealed files are mapped, in whole pages, so
//! neither side can make the other fault by truncating a file.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::vec::Vec;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::layout::{GLOBAL_BYTES, GlobalPage, LOCAL_BYTES, LocalPage};

/// Maximum number of descriptors in a packet, which are a page and a doorbell for each vCPU.
pub const DESCRIPTORS: usize = 1 + crate::layout::VCPUS;

/// Maximum number of descriptors that the kernel allows in one packet (SCM_MAX_FD).
const KERNEL_DESCRIPTORS: usize = 253;

/// Seals of a local page. Length and seals are fixed, and only mappings that were made before the
/// page was sealed can write. So no process can punch a hole into the page, which would make a
/// reader wait.
pub const LOCAL_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// Seals of the global page, the same as those of a local page. The daemon made its mapping before
/// the seals, so only this mapping can write.
pub const GLOBAL_SEALS: SealFlags = LOCAL_SEALS;

/// Creates a memory file for a local page, maps it for its process, and seals it.
///
/// # Errors
/// Errors of the kernel, for descriptors or memory.
pub fn local_page() -> io::Result<(OwnedFd, Mapping<LocalPage>)> {
    let file = memory_file("upshift-local", LOCAL_BYTES)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let page: Mapping<LocalPage> = Mapping::map(file.as_fd(), LOCAL_BYTES, access)?;
    // A child of `fork` does not inherit the mapping.
    // SAFETY: the range is exactly this mapping, so no other memory is affected.
    unsafe { rustix::mm::madvise(page.address(), LOCAL_BYTES, Advice::LinuxDontFork)? };
    rustix::fs::fcntl_add_seals(&file, LOCAL_SEALS)?;
    Ok((file, page))
}

/// Creates a memory file for the global page, maps it for the daemon, and seals it.
///
/// # Errors
/// Errors of the kernel, for descriptors or memory.
pub fn global_page() -> io::Result<(OwnedFd, Mapping<GlobalPage>)> {
    let file = memory_file("upshift-global", GLOBAL_BYTES)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let page = Mapping::map(file.as_fd(), GLOBAL_BYTES, access)?;
    rustix::fs::fcntl_add_seals(&file, GLOBAL_SEALS)?;
    Ok((file, page))
}

/// Creates a memory file of `bytes` zeroes that can be sealed.
///
/// # Errors
/// Errors of the kernel.
pub fn memory_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let noexec_flags = flags | MemfdFlags::NOEXEC_SEAL;
    let file = match rustix::fs::memfd_create(name, noexec_flags) {
        // Linux before 6.3 does not know `NOEXEC_SEAL`.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// A shared mapping of one page structure. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping<T> {
    address: NonNull<T>,
    bytes: usize,
}

// SAFETY: the mapped types consist of atomics only, so any thread may access them, and the mapping
// lives as long as the value.
unsafe impl<T: Sync> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapping<T> {}

impl Mapping<LocalPage> {
    /// Maps the page of a process for the daemon, read-only.
    ///
    /// # Errors
    /// Errors of the kernel; `InvalidInput` for a file without the length and the
    /// [seals](LOCAL_SEALS) of a local page, because a read of such a file could fault or wait.
    pub fn local_for_reading(file: BorrowedFd<'_>) -> io::Result<Mapping<LocalPage>> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| io::ErrorKind::InvalidInput)?;
        let length = rustix::fs::fstat(file)?.st_size;
        if !seals.contains(LOCAL_SEALS) || length != LOCAL_BYTES as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Mapping::map(file, LOCAL_BYTES, ProtFlags::READ)
    }
}

impl Mapping<GlobalPage> {
    /// Maps a page of zeroes in place of a global page. Such a page describes a machine on which no
    /// other process competes. [`Mapping::replace`] replaces it.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn zeroed_global() -> io::Result<Mapping<GlobalPage>> {
        // SAFETY: the kernel chooses a free address for the new mapping, so no memory is replaced.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                GLOBAL_BYTES,
                ProtFlags::READ,
                MapFlags::PRIVATE,
            )?
        };
        Mapping::from_address(address, GLOBAL_BYTES)
    }

    /// Replaces the mapped page by the page of `file`, or by zeroes for `None`, at the same
    /// address. A concurrent reader sees the old page or the new one.
    ///
    /// # Errors
    /// Errors of the kernel; the old page then stays. `InvalidData` if the file is shorter than the
    /// page, or could become shorter.
    pub fn replace(&self, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let address = self.address.as_ptr().cast();
        let fixed = MapFlags::FIXED;
        match file {
            Some(file) => {
                let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
                let is_short = rustix::fs::fstat(file)?.st_size < GLOBAL_BYTES as i64;
                if is_short || !seals.contains(SealFlags::SHRINK) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the daemon's page is too short, or can be truncated: use a daemon and a library of the same release",
                    ));
                }
                // SAFETY: the fixed address and the length are those of this mapping, so no other
                // memory is replaced. Concurrent readers stay valid, because the new mapping has
                // the same length, and only atomics are read from either.
                unsafe {
                    rustix::mm::mmap(
                        address,
                        self.bytes,
                        ProtFlags::READ,
                        MapFlags::SHARED | fixed,
                        file,
                        0,
                    )?
                }
            }
            // SAFETY: as above.
            None => unsafe {
                rustix::mm::mmap_anonymous(
                    address,
                    self.bytes,
                    ProtFlags::READ,
                    MapFlags::PRIVATE | fixed,
                )?
            },
        };
        Ok(())
    }
}

impl<T> Mapping<T> {
    fn map(file: BorrowedFd<'_>, bytes: usize, access: ProtFlags) -> io::Result<Mapping<T>> {
        // SAFETY: the kernel chooses a free address for the new mapping, so no memory is replaced.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        Mapping::from_address(address, bytes)
    }

    fn from_address(address: *mut core::ffi::c_void, bytes: usize) -> io::Result<Mapping<T>> {
        match NonNull::new(address.cast()) {
            Some(address) => Ok(Mapping { address, bytes }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Locks the page in memory, so that reading it never waits for a disk.
    ///
    /// # Errors
    /// Errors of the kernel, if RLIMIT_MEMLOCK does not allow it.
    pub fn lock_in_memory(&self) -> io::Result<()> {
        // SAFETY: the range is exactly this mapping, so no other memory is affected.
        unsafe { rustix::mm::mlock(self.address.as_ptr().cast(), self.bytes)? };
        Ok(())
    }

    /// Returns the address of the mapping, for tests.
    pub fn address(&self) -> *mut core::ffi::c_void {
        self.address.as_ptr().cast()
    }
}

impl<T> std::ops::Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the address is mapped, page-aligned, at least as long as `T`, and alive as long
        // as `self`. `T` is a page type that consists of atomics, so every pattern of bits is
        // valid, and other processes may change the words.
        unsafe { self.address.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: the address and the length are those of the mapping that this value made, and
        // nothing borrows the mapping any more.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// Sends a packet with descriptors. Does not raise SIGPIPE.
///
/// # Errors
/// Errors of the kernel; `WouldBlock` if the socket is full and does not block, or stays full for
/// its time limit.
pub fn send(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(message)];
    loop {
        match rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Number of bytes in the buffer. 0: the other side has closed the connection.
    pub bytes: usize,
    /// The descriptors of the packet.
    pub fds: Vec<OwnedFd>,
    /// Whether the packet is complete, with at most [`DESCRIPTORS`] descriptors.
    pub whole: bool,
}

/// Receives a packet; returns its length and its descriptors. Length 0: the other side has closed
/// the connection.
///
/// # Errors
/// Errors of the kernel; `WouldBlock` after the socket's time limit or without a packet;
/// `InvalidData` if the packet was longer than the buffer or carried more than [`DESCRIPTORS`]
/// descriptors (all are closed).
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    match receive_any(socket, buffer, flags)? {
        Packet {
            bytes,
            fds,
            whole: true,
        } => Ok((bytes, fds)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Receives a packet and returns its descriptors even if the packet is too long, for callers that
/// must not close them. A descriptor is closed here only if this process has no number left for
/// it.
///
/// # Errors
/// Errors of the kernel; `WouldBlock` as with [`receive`].
pub fn receive_any(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Packet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match rustix::net::recvmsg(socket, &mut parts, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let truncation = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
    Ok(Packet {
        bytes: received.bytes,
        whole: !received.flags.intersects(truncation) && fds.len() <= DESCRIPTORS,
        fds,
    })
}

/// Creates a doorbell: an eventfd that does not block.
///
/// # Errors
/// Errors of the kernel.
pub fn doorbell() -> io::Result<OwnedFd> {
    use rustix::event::EventfdFlags;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

/// Rings a doorbell. One system call. If an earlier ring has not been answered yet, both count as
/// one.
///
/// # Errors
/// Errors of the kernel, except "already ringing".
pub fn ring(doorbell: impl AsFd) -> io::Result<()> {
    match rustix::io::write(doorbell, &1u64.to_ne_bytes()) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
