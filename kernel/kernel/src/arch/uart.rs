//! Driver of the serial port (ns16550a), with polled output and interrupt-driven input.

use super::Register;
use crate::machine::{Device, Kind};
use crate::memory::PhysAddr;

const DATA: usize = 0;
const INTERRUPT_ENABLE: usize = 1;
const MODEM_CONTROL: usize = 4;
const LINE_STATUS: usize = 5;
const RECEIVED: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// Loopback mode: sent bytes are received by the port itself.
#[cfg(feature = "selftest")]
const LOOP: u8 = 1 << 4;

/// A serial port. Callers serialize accesses by a lock.
pub(crate) struct Uart {
    data: Register<u8>,
    interrupt_enable: Register<u8>,
    #[cfg_attr(not(feature = "selftest"), expect(dead_code))]
    modem_control: Register<u8>,
    line_status: Register<u8>,
}

impl Uart {
    pub(crate) fn new(device: Device) -> Option<Uart> {
        match device.kind() {
            Kind::Uart => Uart::at(device.base().get()),
            _ => None,
        }
    }

    /// Returns the port of QEMU's `-machine virt`, for messages before the device tree is read.
    pub(crate) fn default_device() -> Option<Uart> {
        Uart::at(0x1000_0000)
    }

    fn at(base: usize) -> Option<Uart> {
        // SAFETY: the register belongs to a serial port, which accesses no memory; the address is
        // from the device tree, or of the only machine that this kernel is linked for.
        let register = |offset| unsafe { Register::new(PhysAddr::new(base + offset)) };
        Some(Uart {
            data: register(DATA)?,
            interrupt_enable: register(INTERRUPT_ENABLE)?,
            modem_control: register(MODEM_CONTROL)?,
            line_status: register(LINE_STATUS)?,
        })
    }

    /// Makes the port receive a byte, which causes an interrupt. The byte is not sent.
    #[cfg(feature = "selftest")]
    pub(crate) fn loop_back(&mut self, byte: u8) {
        self.modem_control.write(LOOP);
        self.data.write(byte);
        self.modem_control.write(0);
    }

    pub(crate) fn enable_input(&mut self) {
        self.interrupt_enable.write(1);
    }

    /// Sends a byte; waits until the transmitter has space.
    pub(crate) fn send(&mut self, byte: u8) {
        while self.line_status.read() & TRANSMITTER_EMPTY == 0 {
            core::hint::spin_loop();
        }
        self.data.write(byte);
    }

    pub(crate) fn receive(&mut self) -> Option<u8> {
        (self.line_status.read() & RECEIVED != 0).then(|| self.data.read())
    }
}
