//! The programs that the kernel runs when a thread is about to end, written in its instructions. Each runs on the thread that it is about.

use std::os::fd::{AsFd, AsRawFd as _};

use super::bpf::Instruction;
use super::{ORDER, PROCESSES, TABLE, THREADS, WANTED};

/// Registers. R6 to R9 keep their values across calls; R10 is the end of the frame.
type Register = u8;
const R0: Register = 0;
const R1: Register = 1;
const R2: Register = 2;
const R3: Register = 3;
const R4: Register = 4;
const R6: Register = 6;
const R7: Register = 7;
const R8: Register = 8;
const R9: Register = 9;
const R10: Register = 10;

const GET_CURRENT_PID_TGID: i32 = 14;
const PROBE_READ_KERNEL: i32 = 113;
const RINGBUF_OUTPUT: i32 = 130;
/// BPF_RB_FORCE_WAKEUP.
const FORCE_WAKEUP: i32 = 2;

/// Operations on 64 bits, and jumps by comparison with 64 bits, both with a constant; `| BY_REGISTER` with a register.
const MOVE: u8 = 0xb7;
const ADD: u8 = 0x07;
const OR: u8 = 0x47;
const AND: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x77;
const IF_EQUAL: u8 = 0x15;
const IF_GREATER: u8 = 0x25;
const IF_UNEQUAL: u8 = 0x55;
const BY_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Loads, stores and atomic operations of 8 bytes.
const LOAD: u8 = 0x79;
const STORE: u8 = 0x7b;
const ATOMIC: u8 = 0xdb;
/// BPF_ADD | BPF_FETCH: the source register gets the old value. The operation is fully ordered: nothing passes it in either direction.
const FETCH_ADD: i32 = 0x01;
/// A load of an 8-byte constant, which takes two instructions. The source says that it is a map, or a place in an array's value.
const LOAD_WIDE: u8 = 0x18;
const OF_MAP: u8 = 1;
const OF_VALUE: u8 = 2;

const KILL: i32 = libc::SIGKILL;
// Signals whose default action does not end a process: SIGCHLD to SIGURG, with no other signal among them, and SIGWINCH, which comes later.
const _: () = assert!(libc::SIGCHLD == 17 && libc::SIGCONT == 18 && libc::SIGSTOP == 19 && libc::SIGTSTP == 20 && libc::SIGTTIN == 21);
const _: () = assert!(libc::SIGTTOU == 22 && libc::SIGURG == 23 && libc::SIGWINCH == 28);

/// Where a jump leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    ByDefault,
    Fatal,
    End,
}

/// The maps of the programs, by their descriptors.
#[derive(Clone, Copy)]
pub(super) struct Maps {
    marks: i32,
    wanted: i32,
    ring: i32,
}

impl Maps {
    pub(super) fn new(marks: impl AsFd, wanted: impl AsFd, ring: impl AsFd) -> Maps {
        Maps { marks: marks.as_fd().as_raw_fd(), wanted: wanted.as_fd().as_raw_fd(), ring: ring.as_fd().as_raw_fd() }
    }
}

struct Program {
    maps: Maps,
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Program {
    fn new(maps: Maps) -> Program {
        Program { maps, code: Vec::new(), jumps: Vec::new(), labels: Vec::new() }
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: to | from << 4, offset, immediate });
    }

    fn constant(&mut self, operation: u8, to: Register, value: i32) {
        self.push(operation, to, 0, 0, value);
    }

    fn register(&mut self, operation: u8, to: Register, from: Register) {
        self.push(operation | BY_REGISTER, to, from, 0, 0);
    }

    fn load(&mut self, to: Register, from: Register, offset: i16) {
        self.push(LOAD, to, from, offset, 0);
    }

    fn jump(&mut self, condition: u8, register: Register, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.constant(condition, register, value);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn wide(&mut self, to: Register, kind: u8, map: i32, offset: usize) {
        self.push(LOAD_WIDE, to, kind, 0, map);
        self.push(0, 0, 0, 0, offset as i32);
    }

    fn call(&mut self, helper: i32) {
        self.constant(CALL, 0, helper);
    }

    /// The numbers of this thread and, above it, of its process.
    fn who(&mut self, to: Register) {
        self.call(GET_CURRENT_PID_TGID);
        self.register(MOVE, to, R0);
    }

    /// Puts the next place in the order of marks into R7. On all processors, what this thread has done as a program comes before it.
    fn draw(&mut self) {
        self.wide(R8, OF_VALUE, self.maps.marks, ORDER * 8);
        self.constant(MOVE, R7, 1);
        self.push(ATOMIC, R8, R7, 0, FETCH_ADD);
        self.constant(ADD, R7, 1);
    }

    /// Makes R8 point to the word of a table at the place given by the low bits of a number.
    fn find(&mut self, map: i32, table: usize, places: usize, number: Register) {
        self.register(MOVE, R1, number);
        self.constant(AND, R1, (places - 1) as i32);
        self.constant(SHIFT_LEFT, R1, 3);
        self.wide(R8, OF_VALUE, map, table * 8);
        self.register(ADD, R8, R1);
    }

    /// Marks the number in the low half of a register in a table. See [`super::mark_of`].
    fn mark(&mut self, table: usize, number: Register) {
        self.find(self.maps.marks, table, TABLE, number);
        self.register(MOVE, R2, number);
        self.constant(SHIFT_RIGHT, R2, TABLE.trailing_zeros() as i32);
        self.constant(AND, R2, super::HIGH_MASK as i32);
        self.register(MOVE, R3, R7);
        self.constant(SHIFT_LEFT, R3, super::HIGH_BITS as i32);
        self.register(OR, R3, R2);
        self.push(STORE, R8, R3, 0, 0);
    }

    /// Makes the ring readable if it is wanted for the process whose number is in `process`: for any reason, or for one that is counted above that
    /// many bits.
    fn wake(&mut self, process: Register, reason: i32) {
        self.find(self.maps.wanted, 0, WANTED, process);
        self.load(R1, R8, 0);
        self.constant(SHIFT_RIGHT, R1, reason);
        self.jump(IF_EQUAL, R1, 0, Label::End);
        self.push(STORE, R10, process, -8, 0);
        self.wide(R1, OF_MAP, self.maps.ring, 0);
        self.register(MOVE, R2, R10);
        self.constant(ADD, R2, -8);
        self.constant(MOVE, R3, 8);
        self.constant(MOVE, R4, FORCE_WAKEUP);
        self.call(RINGBUF_OUTPUT);
    }

    fn end(mut self) -> Vec<Instruction> {
        self.label(Label::End);
        self.constant(MOVE, R0, 0);
        self.push(EXIT, 0, 0, 0, 0);
        for (at, label) in &self.jumps {
            let (_, to) = self.labels.iter().find(|(one, _)| one == label).expect("all labels stand somewhere");
            self.code[*at].offset = (to - at - 1) as i16;
        }
        self.code
    }
}

/// `signal_deliver(signal, info, action)`: the thread is about to do what the signal says. The thread is dead if the signal is SIGKILL, which a
/// thread also gets when its process ends, dumps core or calls exec. It is also dead if the default action is taken and ends the process. For the
/// first process of a PID namespace, that action may be none.
pub(super) fn signal_deliver(maps: Maps) -> Vec<Instruction> {
    let mut program = Program::new(maps);
    program.register(MOVE, R9, R1);
    program.load(R6, R9, 0);
    program.jump(IF_EQUAL, R6, KILL, Label::Fatal);
    // Without a handler, the signals from SIGCHLD to SIGURG, and SIGWINCH, are ignored, continue the process or stop it.
    program.jump(IF_GREATER, R6, libc::SIGWINCH, Label::ByDefault);
    program.jump(IF_EQUAL, R6, libc::SIGWINCH, Label::End);
    program.jump(IF_GREATER, R6, libc::SIGURG, Label::ByDefault);
    program.jump(IF_GREATER, R6, libc::SIGCHLD - 1, Label::End);
    program.label(Label::ByDefault);
    // The action begins with its handler; 0 is the default one.
    program.constant(MOVE, R1, 1);
    program.push(STORE, R10, R1, -8, 0);
    program.register(MOVE, R1, R10);
    program.constant(ADD, R1, -8);
    program.constant(MOVE, R2, 8);
    program.load(R3, R9, 16);
    program.call(PROBE_READ_KERNEL);
    program.jump(IF_UNEQUAL, R0, 0, Label::End);
    program.load(R1, R10, -8);
    program.jump(IF_UNEQUAL, R1, 0, Label::End);
    program.who(R7);
    program.constant(SHIFT_RIGHT, R7, 32);
    program.jump(IF_EQUAL, R7, 1, Label::End);
    program.label(Label::Fatal);
    program.who(R9);
    program.draw();
    program.mark(THREADS, R9);
    // The kernel's own death words are as early as any mark, unless the process dumps core first.
    program.jump(IF_EQUAL, R6, KILL, Label::End);
    program.constant(SHIFT_RIGHT, R9, 32);
    program.wake(R9, 0);
    program.end()
}

/// `sched_process_exit(task, is_last)`: the thread has ended, and its process with it if this is its last thread. Before Linux 6.16 there is no
/// second argument.
pub(super) fn sched_process_exit(maps: Maps, says_whether_last: bool) -> Vec<Instruction> {
    let mut program = Program::new(maps);
    program.register(MOVE, R9, R1);
    program.who(R6);
    program.draw();
    program.mark(THREADS, R6);
    if says_whether_last {
        program.load(R9, R9, 8);
        program.constant(AND, R9, 0xff);
        program.jump(IF_EQUAL, R9, 0, Label::End);
        program.register(MOVE, R9, R6);
        program.constant(SHIFT_RIGHT, R9, 32);
        program.mark(PROCESSES, R9);
        program.wake(R9, super::END_SHIFT as i32);
    }
    program.end()
}

/// `sched_process_exec(task, number_before, binary)`: another program now runs in the thread, which from now on has the number of its process.
/// Nothing is left of the program before it. The number that the thread had before is not marked: the kernel released it before it loaded the
/// program, so it may already be another thread's.
pub(super) fn sched_process_exec(maps: Maps) -> Vec<Instruction> {
    let mut program = Program::new(maps);
    program.who(R6);
    program.draw();
    program.mark(THREADS, R6);
    program.constant(SHIFT_RIGHT, R6, 32);
    program.wake(R6, 0);
    program.end()
}
