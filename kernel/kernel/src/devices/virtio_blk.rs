//! Driver of a virtio disk, on the queue of `virtio-drivers`, in a legacy or a modern slot. No
//! operation spins, not even a flush.
//!
//! ```text
//!        take           submit              reap            take_finished        give_back
//!  free ─────► held ───────────► in device ──────► done ───────────────► held ─────────► free
//!                                     │ abandon              ▲
//!                                     └──────── reap ────────┼──────────────────────────► free
//! ```
//!
//! The number of buffers is fixed: [`REQUESTS`], of a block each. A buffer belongs to the device
//! from its submission until the device has put it into its used ring (`memory/dma.rs`). A device
//! without a cache needs no flush.

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

use super::virtio::{VirtioHal, transport};
use crate::machine::Device;
use crate::memory::PAGE;
use crate::memory::dma::{Dma, InDevice};

/// Size of a block in bytes.
pub(crate) const BLOCK: usize = PAGE;
/// Number of buffers, and so of requests that exist at a time.
const REQUESTS: usize = 8;
/// Number of descriptors of the queue; a request takes at most three.
const QUEUE: usize = 32;
/// Size of a sector in bytes, the unit of the device.
const SECTOR: usize = 512;

/// Features (virtio 1.2, 5.2.3 and 6).
const FLUSH: u64 = 1 << 9;
const VERSION_1: u64 = 1 << 32;
/// Types of requests, and the status of a successful request (5.2.6).
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH_OUT: u32 = 4;
const OK: u8 = 0;
/// Length of the header of a request in bytes; the status follows it in memory.
const HEADER: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Read the block with this number.
    Read(u32),
    /// Write the block with this number.
    Write(u32),
    /// Make earlier writes durable.
    Flush,
}

/// The memory of a request: its header and status, and a block.
pub(crate) struct RequestMemory {
    /// Number of the buffer. No other buffer has it.
    number: usize,
    header: Dma,
    block: Dma,
}

impl RequestMemory {
    fn new(number: usize) -> Option<RequestMemory> {
        Some(RequestMemory {
            number,
            header: Dma::new(PAGE).ok()?,
            block: Dma::new(BLOCK).ok()?,
        })
    }

    pub(crate) fn block(&mut self) -> Option<&mut [u8; BLOCK]> {
        self.block.first_chunk_mut()
    }
}

struct Submitted {
    number: usize,
    header: InDevice,
    block: InDevice,
    request: Request,
    is_wanted: bool,
}

pub(crate) struct Disk {
    transport: MmioTransport<'static>,
    queue: VirtQueue<VirtioHal, QUEUE>,
    blocks: u64,
    can_flush: bool,
    free: [Option<RequestMemory>; REQUESTS],
    /// Requests in the device, by token. A token is free for another request as soon as its request
    /// has been reaped.
    submitted: [Option<Submitted>; QUEUE],
    /// Finished requests by number, with true for success.
    done: [Option<(RequestMemory, bool)>; REQUESTS],
}

impl Disk {
    /// Creates the driver of the disk in a slot; `None` if the slot has no disk, or there is no
    /// memory.
    pub(crate) fn new(device: Device) -> Option<Disk> {
        let mut transport = transport(device, DeviceType::Block)?;
        let driver = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
        transport.set_status(DeviceStatus::empty());
        transport.set_status(driver);
        let features = transport.read_device_features() & (FLUSH | VERSION_1);
        transport.write_driver_features(features);
        transport.set_status(driver | DeviceStatus::FEATURES_OK);
        transport.set_guest_page_size(PAGE as u32);
        let sectors = transport.read_consistent(|| {
            let low: u32 = transport.read_config_space(0)?;
            let high: u32 = transport.read_config_space(4)?;
            Ok(u64::from(low) | u64::from(high) << 32)
        });
        let mut queue = VirtQueue::new(&mut transport, 0, false, false).ok()?;
        queue.set_dev_notify(true);
        transport.finish_init();
        let mut disk = Disk {
            transport,
            queue,
            blocks: sectors.ok()? / (BLOCK / SECTOR) as u64,
            can_flush: features & FLUSH != 0,
            free: [const { None }; REQUESTS],
            submitted: [const { None }; QUEUE],
            done: [const { None }; REQUESTS],
        };
        for (number, slot) in disk.free.iter_mut().enumerate() {
            *slot = Some(RequestMemory::new(number)?);
        }
        Some(disk)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns whether writes can be lost before a flush.
    pub(crate) fn can_flush(&self) -> bool {
        self.can_flush
    }

    pub(crate) fn take(&mut self) -> Option<RequestMemory> {
        self.free.iter_mut().find_map(Option::take)
    }

    pub(crate) fn give_back(&mut self, memory: RequestMemory) {
        if let Some(slot) = self.free.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(memory);
        }
    }

    /// Submits a request, and returns its number. Returns the memory if the queue is full.
    pub(crate) fn submit(
        &mut self,
        mut memory: RequestMemory,
        request: Request,
    ) -> Result<usize, RequestMemory> {
        let sectors = |block: u32| u64::from(block) * (BLOCK / SECTOR) as u64;
        let (kind, sector) = match request {
            Request::Read(block) => (IN, sectors(block)),
            Request::Write(block) => (OUT, sectors(block)),
            Request::Flush => (FLUSH_OUT, 0),
        };
        memory.header[..4].copy_from_slice(&kind.to_le_bytes());
        memory.header[4..8].fill(0);
        memory.header[8..HEADER].copy_from_slice(&sector.to_le_bytes());
        // Any value other than the status that the device writes.
        memory.header[HEADER] = !OK;
        let (header, status) = memory.header.split_at_mut(HEADER);
        let status = &mut status[..1];
        // SAFETY: the memory belongs to the device until `reap` finds its token in the used ring,
        // because the memory is lent below, and freed only if `add` fails.
        let token = unsafe {
            match request {
                Request::Read(_) => self.queue.add(&[header], &mut [&mut memory.block, status]),
                Request::Write(_) => self.queue.add(&[header, &memory.block], &mut [status]),
                Request::Flush => self.queue.add(&[header], &mut [status]),
            }
        };
        let Ok(token) = token else {
            return Err(memory);
        };
        let number = memory.number;
        self.submitted[usize::from(token) % QUEUE] = Some(Submitted {
            number,
            header: memory.header.lend(),
            block: memory.block.lend(),
            request,
            is_wanted: true,
        });
        // The device is notified even if it requests no notification. The reason is that the queue
        // has no fence between its write of the index and its read of the device's request, so a
        // device that has just gone to sleep would not be woken.
        self.transport.notify(0);
        Ok(number)
    }

    /// Moves the requests that the device has finished out of the queue. Returns false if there
    /// were none.
    pub(crate) fn reap(&mut self) -> bool {
        let mut has_finished = false;
        while let Some(token) = self.queue.peek_used() {
            let at = usize::from(token) % QUEUE;
            let Some(submitted) = self.submitted[at].take() else {
                // The device reports a request as done although it has no such request.
                break;
            };
            // SAFETY: the device has put the token into its used ring, so it no longer uses the
            // memory.
            let (mut header, mut block) =
                unsafe { (submitted.header.reclaim(), submitted.block.reclaim()) };
            let (request, status) = header.split_at_mut(HEADER);
            let status = &mut status[..1];
            // SAFETY: these are the buffers that were added for this token.
            let popped = unsafe {
                match submitted.request {
                    Request::Read(_) => {
                        let outputs = &mut [&mut *block, &mut *status];
                        self.queue.pop_used(token, &[request], outputs)
                    }
                    Request::Write(_) => {
                        let inputs = &[&*request, &*block];
                        self.queue.pop_used(token, inputs, &mut [&mut *status])
                    }
                    Request::Flush => self.queue.pop_used(token, &[request], &mut [&mut *status]),
                }
            };
            let has_succeeded = popped.is_ok() && status[0] == OK;
            has_finished = true;
            let number = submitted.number;
            let memory = RequestMemory {
                number,
                header,
                block,
            };
            if submitted.is_wanted {
                self.done[number] = Some((memory, has_succeeded))
            } else {
                self.give_back(memory)
            }
        }
        has_finished
    }

    pub(crate) fn take_finished(&mut self, number: usize) -> Option<(RequestMemory, bool)> {
        self.done.get_mut(number)?.take()
    }

    /// Abandons a request, whose memory is freed once the device has finished the request.
    pub(crate) fn abandon(&mut self, number: usize) {
        if let Some((memory, _)) = self.take_finished(number) {
            return self.give_back(memory);
        }
        let mut submitted = self.submitted.iter_mut().flatten();
        if let Some(submitted) = submitted.find(|submitted| submitted.number == number) {
            submitted.is_wanted = false;
        }
    }
}
