//! The serial port (ns16550a): polled output, interrupt-driven input.

use super::Register;
use crate::memory::PhysAddr;

const DATA: usize = 0;
const INTERRUPT_ENABLE: usize = 1;
const LINE_STATUS: usize = 5;
const RECEIVED: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;

/// One port; whoever uses it has a lock around it.
pub(crate) struct Uart {
    data: Register<u8>,
    interrupt_enable: Register<u8>,
    line_status: Register<u8>,
}

impl Uart {
    /// The port at a physical address; `None` if no device can be there.
    pub(crate) fn new(base: PhysAddr) -> Option<Uart> {
        let register = |offset| Register::new(PhysAddr::new(base.get() + offset));
        Some(Uart {
            data: register(DATA)?,
            interrupt_enable: register(INTERRUPT_ENABLE)?,
            line_status: register(LINE_STATUS)?,
        })
    }

    /// Asks for an interrupt when a byte has come in.
    pub(crate) fn enable_input(&mut self) {
        self.interrupt_enable.write(1);
    }

    /// Sends a byte, waiting until there is room.
    pub(crate) fn send(&mut self, byte: u8) {
        while self.line_status.read() & TRANSMITTER_EMPTY == 0 {
            core::hint::spin_loop();
        }
        self.data.write(byte);
    }

    /// Takes a byte that has come in.
    pub(crate) fn receive(&mut self) -> Option<u8> {
        (self.line_status.read() & RECEIVED != 0).then(|| self.data.read())
    }
}
