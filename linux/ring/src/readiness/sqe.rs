//! Gives access to the fields of a submission queue entry, which `io_uring` keeps private. The
//! layout is part of the kernel's interface, so it cannot change.

use io_uring::squeue::Entry;

/// The kernel's `struct io_uring_sqe`; the meaning of its fields depends on the operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sqe {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) ioprio: u16,
    pub(crate) fd: i32,
    /// An offset in a file, or a second address.
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) op_flags: u32,
    pub(crate) user_data: u64,
    pub(crate) buffer_group: u16,
    personality: u16,
    file_index: u32,
    address3: u64,
    reserved: u64,
}

const _: () = assert!(size_of::<Sqe>() == size_of::<Entry>());
const _: () = assert!(align_of::<Sqe>() <= align_of::<Entry>());

impl Sqe {
    pub(crate) fn from_entry(entry: &Entry) -> Self {
        // SAFETY: both types consist of 64 bytes of plain integers in the kernel's layout, all of
        // them initialised, so each value of one is a valid value of the other.
        unsafe { std::ptr::from_ref(entry).cast::<Self>().read() }
    }

    pub(crate) fn pointer<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Returns the entry's second address, which is in its offset field, as a pointer.
    pub(crate) fn second_pointer<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.offset as usize)
    }
}

/// `IOSQE_BUFFER_SELECT`, by which the operation receives into a buffer of the group.
pub(crate) const BUFFER_SELECT: u8 = 1 << 5;
/// `IORING_RECVSEND_POLL_FIRST`, in `ioprio`.
pub(crate) const POLL_FIRST: u16 = 1 << 0;
/// `IORING_RECV_MULTISHOT`, in `ioprio`.
pub(crate) const RECV_MULTISHOT: u16 = 1 << 1;
/// `IORING_ACCEPT_MULTISHOT`, in `ioprio`.
pub(crate) const ACCEPT_MULTISHOT: u16 = 1 << 0;
/// `IORING_ASYNC_CANCEL_ANY`, in the flags of the operation.
pub(crate) const CANCEL_ANY: u32 = 1 << 2;
/// `IORING_POLL_ADD_MULTI`, in the length.
pub(crate) const POLL_MULTI: u32 = 1 << 0;
/// `IORING_FSYNC_DATASYNC`.
pub(crate) const DATASYNC: u32 = 1 << 0;

/// `IORING_CQE_F_BUFFER`, which says that the upper half of the flags is the number of a buffer.
pub(crate) const BUFFER: u32 = 1 << 0;
/// `IORING_CQE_F_MORE`, which says that further completions of the operation follow.
pub(crate) const MORE: u32 = 1 << 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use io_uring::{opcode, types};

    #[test]
    fn the_fields_are_at_the_kernels_offsets() {
        let entry = opcode::Read::new(types::Fd(7), std::ptr::dangling_mut(), 99)
            .offset(1 << 40)
            .ioprio(3)
            .build()
            .user_data(u64::MAX - 5);
        let sqe = Sqe::from_entry(&entry);
        assert_eq!(sqe.opcode, opcode::Read::CODE);
        assert_eq!((sqe.fd, sqe.length, sqe.offset), (7, 99, 1 << 40));
        assert_eq!((sqe.ioprio, sqe.user_data), (3, u64::MAX - 5));
        assert_eq!(sqe.address, 1);
        let entry = opcode::PollAdd::new(types::Fd(1), 0x2001)
            .multi(true)
            .build();
        assert_eq!(
            (
                Sqe::from_entry(&entry).op_flags,
                Sqe::from_entry(&entry).length
            ),
            (0x2001, POLL_MULTI)
        );
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any().all()).build();
        assert_ne!(Sqe::from_entry(&entry).op_flags & CANCEL_ANY, 0);
        let entry = opcode::RecvMulti::new(types::Fd(1), 5).build();
        let sqe = Sqe::from_entry(&entry);
        assert_eq!(sqe.buffer_group, 5);
        assert_ne!(sqe.ioprio & RECV_MULTISHOT, 0);
        assert_ne!(sqe.flags & BUFFER_SELECT, 0);
        let entry = opcode::AcceptMulti::new(types::Fd(1)).build();
        assert_ne!(Sqe::from_entry(&entry).ioprio & ACCEPT_MULTISHOT, 0);
        let fsync = opcode::Fsync::new(types::Fd(1)).flags(types::FsyncFlags::DATASYNC);
        assert_eq!(Sqe::from_entry(&fsync.build()).op_flags, DATASYNC);
    }
}
