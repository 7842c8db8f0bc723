//! Common parts of the virtio drivers: memory for `virtio-drivers`, and the registers of a slot.

use core::ptr::NonNull;

use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::{BufferDirection, Hal, PhysAddr as BusAddr};

use crate::arch::Register;
use crate::machine::{Device, Kind};
use crate::memory::dma::{Dma, InDevice};
use crate::memory::{PAGE, PhysAddr};

/// Registers of a virtio slot (virtio 1.2, 4.2.2).
const DEVICE_ID: usize = 0x08;
const INTERRUPT_STATUS: usize = 0x60;
const INTERRUPT_ACK: usize = 0x64;

/// Memory services of the kernel for the drivers of `virtio-drivers`.
pub(super) struct VirtioHal;

// SAFETY: frames are zeroed, aligned, contiguous, mapped at a fixed distance, and handed out once;
// registers are mapped in the same way.
unsafe impl Hal for VirtioHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (BusAddr, NonNull<u8>) {
        match Dma::new(pages * PAGE) {
            Ok(dma) => {
                // The driver frees the memory when the device no longer uses it.
                let start = dma.lend().address();
                let address = NonNull::new(start.direct() as *mut u8);
                (
                    start.get() as BusAddr,
                    address.unwrap_or(NonNull::dangling()),
                )
            }
            // The driver treats this value as a failure.
            Err(_) => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(start: BusAddr, _: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: the driver returns memory that it got from `dma_alloc`, with the same number of
        // pages.
        drop(unsafe { InDevice::from_raw(PhysAddr::new(start as usize), pages * PAGE).reclaim() });
        0
    }

    unsafe fn mmio_phys_to_virt(start: BusAddr, _: usize) -> NonNull<u8> {
        let address = PhysAddr::new(start as usize).direct() as *mut u8;
        NonNull::new(address).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> BusAddr {
        // Buffers are frames, which the kernel maps at a fixed distance.
        PhysAddr::of_image(buffer.cast::<u8>().as_ptr().addr()).get() as BusAddr
    }

    unsafe fn unshare(_: BusAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Interrupt status and acknowledge registers of a slot.
#[derive(Clone, Copy)]
pub(crate) struct InterruptAck {
    status: Register<u32>,
    acknowledge: Register<u32>,
}

impl InterruptAck {
    pub(crate) fn new(device: Device) -> Option<InterruptAck> {
        if device.kind() != Kind::Virtio {
            return None;
        }
        let register = |offset| {
            let address = PhysAddr::new(device.base().get() + offset);
            // SAFETY: according to the device tree this is a virtio slot, and writes to these two
            // registers cause no memory access.
            unsafe { Register::new(address) }
        };
        Some(InterruptAck {
            status: register(INTERRUPT_STATUS)?,
            acknowledge: register(INTERRUPT_ACK)?,
        })
    }

    /// Acknowledges the interrupt. The handler may call it during any other use of the device.
    pub(crate) fn acknowledge(self) {
        self.acknowledge.write(self.status.read());
    }
}

/// Returns the slot of a device if the device has this type. The slot of a device of another type
/// is not opened, because dropping the transport would reset that device.
pub(super) fn transport(device: Device, kind: DeviceType) -> Option<MmioTransport<'static>> {
    if device.kind() != Kind::Virtio {
        return None;
    }
    // SAFETY: according to the device tree this is a virtio slot, and a read of this register has
    // no effect.
    let id = unsafe { Register::<u32>::new(PhysAddr::new(device.base().get() + DEVICE_ID)) };
    if DeviceType::try_from(id?.read()).ok() != Some(kind) {
        return None;
    }
    let header = NonNull::new(device.base().direct() as *mut _)?;
    // SAFETY: according to the device tree there is a virtio slot of this size; it stays mapped,
    // and only `InterruptAck` uses it besides, for two other registers.
    unsafe { MmioTransport::new(header, device.size()) }.ok()
}
