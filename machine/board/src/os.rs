//! Memory files, mappings and packets with descriptors: what client and daemon both need of Linux.
//!
//! Each function is one or a few system calls. Mappings are of whole pages of sealed files, so neither side can make the
//! other fault by cutting a file short.

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

/// Descriptors one packet carries at most: a page and a doorbell for each vCPU.
pub const DESCRIPTORS: usize = 1 + crate::layout::VCPUS;

/// Descriptors that the kernel lets one packet carry (SCM_MAX_FD).
const MOST_DESCRIPTORS: usize = 253;

/// Seals of a local page: its length is fixed, only mappings made before can write, so no process can punch a hole into it (reading
/// it would have to wait for the puncher), and so are the seals.
pub const LOCAL_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// Seals of the global page: as of a local one. So the daemon's mapping, which was made before, is the only one that can be written.
pub const GLOBAL_SEALS: SealFlags = LOCAL_SEALS;

/// Makes a memory file for a local page, the process's own view of it, and then the seals.
///
/// # Errors
/// The kernel's: no descriptors, no memory.
pub fn local_page() -> io::Result<(OwnedFd, Mapping<LocalPage>)> {
    let file = memory_file("upshift-local", LOCAL_BYTES)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let page: Mapping<LocalPage> = Mapping::map(file.as_fd(), LOCAL_BYTES, access)?;
    // A child of `fork` does not write to it.
    // SAFETY: the range is this mapping.
    unsafe { rustix::mm::madvise(page.address(), LOCAL_BYTES, Advice::LinuxDontFork)? };
    rustix::fs::fcntl_add_seals(&file, LOCAL_SEALS)?;
    Ok((file, page))
}

/// Makes a memory file for the global page, the daemon's own view of it, and then the seals.
///
/// # Errors
/// The kernel's: no descriptors, no memory.
pub fn global_page() -> io::Result<(OwnedFd, Mapping<GlobalPage>)> {
    let file = memory_file("upshift-global", GLOBAL_BYTES)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let page = Mapping::map(file.as_fd(), GLOBAL_BYTES, access)?;
    rustix::fs::fcntl_add_seals(&file, GLOBAL_SEALS)?;
    Ok((file, page))
}

/// Makes a memory file of `bytes` zeroes that can be sealed.
///
/// # Errors
/// The kernel's.
pub fn memory_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let sealed_off = flags | MemfdFlags::NOEXEC_SEAL;
    let file = match rustix::fs::memfd_create(name, sealed_off) {
        // Before Linux 6.3.
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

// SAFETY: the mapped types consist of atomics only, and the mapping lives as long as the value.
unsafe impl<T: Sync> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapping<T> {}

impl Mapping<LocalPage> {
    /// The daemon's view: readable only.
    ///
    /// # Errors
    /// The kernel's. `InvalidInput` for what is no local page: without its length and its [seals](LOCAL_SEALS) to read it might fault, or
    /// wait. Files that cannot be sealed have no seals to ask for.
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
    /// Room for a process's view, filled with zeroes: no other process competes. See [`Mapping::show`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn global_room() -> io::Result<Mapping<GlobalPage>> {
        // SAFETY: a fresh mapping whose address the kernel chooses.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                GLOBAL_BYTES,
                ProtFlags::READ,
                MapFlags::PRIVATE,
            )?
        };
        Mapping::of(address, GLOBAL_BYTES)
    }

    /// Puts the page of `file` in place of what is shown, at the same address; `None`: zeroes. A reader meanwhile sees the
    /// one or the other.
    ///
    /// # Errors
    /// The kernel's; what was shown stays. `InvalidData` if the file is shorter than the page, or could become so.
    pub fn show(&self, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let address = self.address.as_ptr().cast();
        let fixed = MapFlags::FIXED;
        match file {
            Some(file) => {
                let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
                let is_short = rustix::fs::fstat(file)?.st_size < GLOBAL_BYTES as i64;
                if is_short || !seals.contains(SealFlags::SHRINK) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the daemon's page is too short, or can be cut: use a daemon and a library of the same release",
                    ));
                }
                // SAFETY: replaces this mapping, which is as long, and which nothing but atomics is read from.
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
        // SAFETY: a fresh mapping whose address the kernel chooses.
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
        Mapping::of(address, bytes)
    }

    fn of(address: *mut core::ffi::c_void, bytes: usize) -> io::Result<Mapping<T>> {
        match NonNull::new(address.cast()) {
            Some(address) => Ok(Mapping { address, bytes }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Keeps the page in memory, so that reading it never waits for a disk.
    ///
    /// # Errors
    /// The kernel's, if RLIMIT_MEMLOCK does not allow it.
    pub fn lock_in_memory(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping.
        unsafe { rustix::mm::mlock(self.address.as_ptr().cast(), self.bytes)? };
        Ok(())
    }

    /// Where it is mapped, for tests that try to break it.
    pub fn address(&self) -> *mut core::ffi::c_void {
        self.address.as_ptr().cast()
    }
}

impl<T> std::ops::Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped, page-aligned, at least as long as `T`, and alive as long as `self`. `T` is one of the page types:
        // atomics, for which every pattern of bits is valid and which others may change.
        unsafe { self.address.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by this value and not borrowed any more.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// Sends one packet with descriptors. Does not raise SIGPIPE.
///
/// # Errors
/// The kernel's; `WouldBlock` if the socket does not block and is full.
pub fn send(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut room);
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

/// A packet as it arrived.
#[derive(Debug)]
pub struct Packet {
    /// How many bytes of the buffer it has filled. 0: the other side has closed.
    pub bytes: usize,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// Whether that is all of it, and no more than [`DESCRIPTORS`].
    pub whole: bool,
}

/// Receives one packet: how many bytes it has, and its descriptors. 0 bytes: the other side has closed.
///
/// # Errors
/// The kernel's; `WouldBlock` after the socket's time limit or if there is none; `InvalidData` if the packet was longer than
/// the buffer or carried more than [`DESCRIPTORS`] descriptors (all are closed).
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

/// As [`receive`], for receivers that may not close what they are sent: descriptors of packets that are too long are handed over, too.
/// Only if no descriptors are left are some closed here.
///
/// # Errors
/// The kernel's; `WouldBlock` as with [`receive`].
pub fn receive_any(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Packet> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
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
    let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
    Ok(Packet {
        bytes: received.bytes,
        whole: !received.flags.intersects(cut) && fds.len() <= DESCRIPTORS,
        fds,
    })
}

/// A doorbell: an eventfd that does not block.
///
/// # Errors
/// The kernel's.
pub fn doorbell() -> io::Result<OwnedFd> {
    use rustix::event::EventfdFlags;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

/// Rings a doorbell. One system call. A doorbell that has not been answered yet rings again.
///
/// # Errors
/// The kernel's, other than "already ringing".
pub fn ring(doorbell: impl AsFd) -> io::Result<()> {
    match rustix::io::write(doorbell, &1u64.to_ne_bytes()) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
