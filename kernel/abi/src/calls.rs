//! The table of system calls.
//!
//! A call is made by `ecall` with its number in a7 and its arguments in a0 to a5. The result is in
//! a0, and is negative if it is an [`Error`](crate::Error).
//!
//! `now` calls are answered at once. `thread` calls suspend, end, copy or redirect the calling
//! thread. `later` calls may take time: each becomes a kernel coroutine with the level of the
//! caller, and has two forms. In the synchronous form the caller waits. With
//! [`ASYNCHRONOUS`](crate::number::ASYNCHRONOUS) added to the number the call returns at once, and
//! later the completion ring receives the result together with two words that were in a5 (a token)
//! and a6 (the id of the coroutine to wake). An asynchronous call that completes at once causes no
//! completion, see [`COMPLETED`](crate::number::COMPLETED). The module `calls` of the user library
//! declares each `later` call once for both forms.

/// Calls `$with! { … }` with the table. Each row is `NUMBER KIND NAME(ARGUMENTS);`, after its
/// documentation.
#[macro_export]
macro_rules! system_calls {
    ($with:ident) => {
        $with! {
            /// Ends the process with a status, of which only the low 8 bits are used.
            0 now exit(status);
            /// Yields the hart to other threads of the same level.
            1 now yield_cpu();
            /// Returns the number of ticks since the machine started.
            2 now clock();
            /// Maps `pages` zeroed pages and returns their address.
            3 later map(pages);
            /// Sets the level of the calling thread, but to none that is more urgent than the
            /// ceiling of the process.
            4 now set_level(level);
            /// Creates a pipe; returns its reading end, plus its writing end times 2³².
            5 now pipe();
            /// Closes a file descriptor.
            6 now close(file);
            /// Starts the program that the [`SpawnRequest`](crate::SpawnRequest) at an address
            /// describes; returns its process number. The program is in the archive, or else a file
            /// of the disk.
            7 later spawn(request);
            /// Ends a child, with status [`KILLED`](crate::number::KILLED).
            8 now kill(process);
            /// Returns the free memory, in pages.
            9 now free_pages();
            /// Waits until a completion arrives or `unpark` is called; returns at once if one of
            /// these has already happened.
            10 thread park();
            /// Ends the handler of a user interrupt and returns to the interrupted code.
            11 thread return_from_interrupt();
            /// Starts a thread of the process at an address, with a stack pointer and a word in a0;
            /// returns its number.
            12 now thread_create(entry, stack, argument);
            /// Ends the current `park` of the thread with index `line`, or its next one; the thread
            /// becomes at least as urgent as `level`.
            13 now unpark(line, level);
            /// Wakes at most `count` waiters at an address, oldest first; returns their number.
            14 now futex_wake(address, count);
            /// Reads from a file descriptor into a range; returns the number of bytes, 0 at the
            /// end.
            16 later read(file, start, len);
            /// Writes a range to a file descriptor; returns the number of bytes.
            17 later write(file, start, len);
            /// Waits until the clock shows `deadline`, in ticks.
            18 later sleep_until(deadline);
            /// Waits until a child has ended and returns its status.
            19 later wait(process);
            /// Waits until a thread has ended and returns its result; meanwhile the thread is at
            /// least as urgent as the caller. The thread's number is invalid afterwards.
            20 later thread_join(thread);
            /// Waits for a `futex_wake` of an address if the 32-bit word there is `value`, at most
            /// until the clock shows `deadline`. Returns [`WOKEN`](crate::number::WOKEN),
            /// [`CHANGED`](crate::number::CHANGED) or [`TIMED_OUT`](crate::number::TIMED_OUT).
            21 later futex_wait(address, value, deadline);
            /// Ends the calling thread with a result, whose top bit is lost. The process ends with
            /// its last thread, whose result is its status.
            22 thread thread_exit(result);
            /// Maps `pages` zeroed pages with an unmapped page below them, and returns their
            /// address.
            23 later map_stack(pages);
            /// Creates a child with a copy of memory and descriptors, in which only the calling
            /// thread continues. Returns its number, and 0 in the child.
            24 thread fork();
            /// Replaces the program by another program of the archive, or else of the disk, with an
            /// argument; descriptors stay open. Returns only on failure.
            25 thread exec(name, name_len, argument, argument_len);
            /// Waits until the lock at an address (see [`thread`](crate::thread)) is free, and
            /// acquires it. Meanwhile its holder is at least as urgent as the calling thread.
            26 thread futex_lock(address);
            /// Passes the lock at an address to the most urgent thread that waits for it.
            27 now futex_unlock(address);
            /// Sets the level of an asynchronous call. If the process may not have this level, sets
            /// the nearest one that it may have. For `call` and `token` see `cancel`.
            28 now reprio_call(call, token, level);
            /// Applies the levels that another thread has added to the line of the thread with
            /// index `line` (`LOCAL_BITMAP`, see [`thread`](crate::thread)). Without this call
            /// these levels would apply only when the thread with this index runs next.
            29 now follow(line);
            /// Ends an asynchronous call early: its completion arrives soon, with
            /// [`Cancelled`](crate::Error::Cancelled) unless the call already has a result. `call`
            /// is the return value of the call minus [`IN_FLIGHT`](crate::number::IN_FLIGHT).
            32 now cancel(call, token);
            /// Creates a TCP socket; returns its descriptor, which is read, written and closed like
            /// any file.
            40 now socket();
            /// Assigns a port to a socket.
            41 now bind(file, port);
            /// Makes a socket a listener; at most `backlog` connections, 1 to 128, wait to be
            /// accepted.
            42 now listen(file, backlog);
            /// Ends writing: the peer reads the end of the stream.
            43 now shutdown(file);
            /// Waits for a connection; returns its descriptor.
            44 later accept(file);
            /// Connects a socket to a port of an address, whose first byte is the most significant.
            45 later connect(file, address, port);
            /// Creates a UDP socket; returns its descriptor. `bind` assigns a port, or any free
            /// port if it is 0.
            46 now datagram_socket();
            /// Sends a range as a datagram, at most [`MAX_LEN`](crate::datagram::MAX_LEN) bytes, to
            /// a port of an address; returns the number of bytes. A socket without a port gets one.
            47 later send_to(file, start, len, address, port);
            /// Waits for a datagram. The range receives its source ([`datagram`](crate::datagram)),
            /// then as much of the datagram as fits; returns the number of bytes in the range.
            48 later receive_from(file, start, len);
            /// Opens a file of the disk, positioned at its beginning; returns its descriptor, which
            /// is read, written and closed like any other. `flags` are
            /// [`CREATE`](crate::number::CREATE) and [`TRUNCATE`](crate::number::TRUNCATE).
            50 later open(name, name_len, flags);
            /// Waits until all earlier writes to the disk, by any program, are durable.
            51 later fsync(file);
            /// Removes the name of a file, which is freed when no descriptor has it open.
            52 later unlink(name, name_len);
            /// Returns the first file whose number is not below `from`: the range receives its
            /// length in bytes (a word) and as much of its name as fits. The result is the number
            /// of the file plus 1, and the length of the name times 2³²; 0 if there is no such
            /// file.
            53 later list(from, start, len);
            /// Sets the position at which a file is read or written next; returns the file's length
            /// in bytes.
            54 now seek(file, position);
            /// Returns the length of the name of program number `index` in the archive; the range
            /// receives as much of the name as fits. Returns 0 if the archive has no such program.
            55 now program(index, start, len);
            /// Returns the state of the first process whose table slot is not below `from`: the
            /// range receives a [`ProcessStatus`](crate::ProcessStatus). The result is the slot
            /// plus 1, or 0 if there is no such process.
            56 now process(from, start, len);
            /// Returns the state of a hart: the range receives a [`HartStatus`](crate::HartStatus).
            /// The result is the number of harts.
            57 now hart(index, start, len);
        }
    };
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        /// Numbers of the calls, by name.
        #[allow(non_upper_case_globals, reason = "named like the calls")]
        pub mod number {
            $($(#[$doc])* pub const $name: usize = $number;)*

            /// Value that is added to the number of a `later` call to make it asynchronous.
            pub const ASYNCHRONOUS: usize = 1 << 16;
            /// Result of `futex_wait`: woken by `futex_wake`.
            pub const WOKEN: isize = 0;
            /// Result of `futex_wait`: the word has another value.
            pub const CHANGED: isize = 1;
            /// Result of `futex_wait`: the deadline has passed.
            pub const TIMED_OUT: isize = 2;
            /// Return value of an asynchronous call that completed at once: its result is in a1,
            /// and no completion follows.
            pub const COMPLETED: isize = 1;
            /// Return value of an asynchronous call that is in flight: this value plus the number
            /// by which the call can be cancelled.
            pub const IN_FLIGHT: isize = 2;
            /// Flag of `open`: creates the file if it does not exist.
            pub const CREATE: usize = 1;
            /// Flag of `open`: removes all bytes of the file.
            pub const TRUNCATE: usize = 2;
            /// Position for `seek`: keeps the current position.
            pub const KEEP_POSITION: usize = usize::MAX;
            /// Status of a process that was killed.
            pub const KILLED: isize = 137;
            /// Status of a process that a fault has ended.
            pub const FAULTED: isize = 139;
        }
    };
}

system_calls!(numbers);
