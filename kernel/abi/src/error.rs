//! Errors of system calls, which are negative results.

use core::fmt;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Reason why a system call failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(isize)]
        pub enum Error {
            $($(#[$doc])* $name = $code,)*
        }

        impl Error {
            /// Returns the error of a result word, if it is negative.
            #[must_use]
            pub const fn from_code(code: isize) -> Option<Error> {
                match code {
                    $($code => Some(Error::$name),)*
                    _ => None,
                }
            }

            const fn text(self) -> &'static str {
                match self {
                    $(Error::$name => $text,)*
                }
            }
        }
    };
}

errors! {
    /// There is no such system call.
    NoSuchCall = -1, "no such system call: the program was built for another kernel";
    /// The memory is not the program's, or the program may not use it in this way.
    BadAddress = -2, "the memory is not the program's";
    /// The file descriptor does not exist, or does not allow this operation.
    BadFile = -3, "no such file descriptor, or it does not allow this operation";
    /// There is no memory, or the process has used up its share.
    OutOfMemory = -4, "no memory left for this process";
    /// A limit of the process is reached: descriptors, calls in flight, threads, processes.
    TooMany = -5, "a limit of the process is reached";
    /// An argument is out of range.
    BadArgument = -6, "an argument is out of range";
    /// Neither the archive nor the disk has such a program.
    NoProgram = -7, "no such program in the archive or on the disk";
    /// The program is not an ELF file that this kernel can run, or its file on the disk exceeds 2
    /// MiB.
    BadProgram = -8, "not a program: an ELF file for RISC-V is needed, linked by kernel/user/user.ld, of at most 2 MiB on the disk";
    /// The process does not exist, or is not a child of the caller.
    NoProcess = -9, "no such process among the children";
    /// The pipe has no reader.
    BrokenPipe = -10, "the pipe has no reader";
    /// The level exceeds the ceiling of the process.
    TooUrgent = -11, "more urgent than the ceiling of the process";
    /// The process has no such thread, or the thread cannot be waited for.
    NoThread = -12, "no such thread of the process";
    /// Other threads of the process do not leave their critical sections.
    Busy = -13, "other threads of the process are in critical sections; try again";
    /// The parent made the call before `fork`, and receives its result.
    NotInherited = -14, "the call belongs to the parent of this process";
    /// The call was cancelled.
    Cancelled = -15, "the call was cancelled";
    /// There is no such call in flight.
    NoCall = -16, "no such call is in flight";
    /// There is no listener, or the connection was reset before it was established.
    Refused = -17, "the connection is refused";
    /// Another socket has the port.
    InUse = -18, "another socket has the port";
    /// The disk has no such file.
    NoFile = -19, "no such file on the disk";
    /// The disk is full, or there are too many files.
    NoSpace = -20, "no space left on the disk";
    /// There is no disk, the disk is damaged, or it fails.
    DiskFailed = -21, "there is no disk, or it fails";
    /// A part of the path is a file, which has no entries.
    NotDirectory = -22, "a part of the path is a file, not a directory";
    /// The path is a directory.
    IsDirectory = -23, "the path is a directory, not a file";
}

impl Error {
    /// Returns the result word.
    #[must_use]
    pub const fn code(self) -> isize {
        self as isize
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Error {}
