//! A state that is one value.

use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::UnreadablePart;

use super::machine::StateMachine;

/// What a command does to a value: reads the command, changes the value, and appends the reply. It is a function and not a closure, since only the value and
/// the command may matter. It must accept any bytes.
pub type Apply<T> = fn(value: &mut T, command: &[u8], reply: &mut Vec<u8>);

/// A value that is a whole state. It begins as its default, and is sent to other replicas as bytes. For states of some hundred kilobytes at most; a larger one
/// is sent in parts, as a [`StateMachine`] of its own.
pub trait Value: Default + Send + 'static {
    /// Appends the value to `out`. Equal values give equal bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// The value that these bytes encode.
    ///
    /// # Errors
    /// When they encode none: see [`StateMachine::restore`].
    fn decode(bytes: &[u8]) -> Result<Self, UnreadablePart>;
}

macro_rules! integers {
    ($($integer:ty),+) => {
        $(impl Value for $integer {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn decode(bytes: &[u8]) -> Result<Self, UnreadablePart> {
                bytes.try_into().map(<$integer>::from_le_bytes).map_err(|_| UnreadablePart)
            }
        })+
    };
}
integers!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl Value for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn decode(bytes: &[u8]) -> Result<Self, UnreadablePart> {
        Ok(bytes.to_vec())
    }
}

impl Value for String {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
    fn decode(bytes: &[u8]) -> Result<Self, UnreadablePart> {
        String::from_utf8(bytes.to_vec()).map_err(|_| UnreadablePart)
    }
}

/// The state machine of one value. Any query is answered with the value's bytes.
#[derive(Clone, Debug)]
pub struct Plain<T> {
    value: T,
    apply: Apply<T>,
}

impl<T: Value> Plain<T> {
    /// A machine that begins with the default value, which commands change with `apply`.
    pub fn new(apply: Apply<T>) -> Plain<T> {
        Plain { value: T::default(), apply }
    }

    /// The value, for reads.
    pub fn value(&self) -> &T {
        &self.value
    }
}

impl<T: Value> StateMachine for Plain<T> {
    fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        (self.apply)(&mut self.value, command, reply);
    }

    fn query(&self, _: &[u8], reply: &mut Vec<u8>) {
        self.value.encode(reply);
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        self.value.encode(out);
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        self.value = T::decode(snapshot)?;
        Ok(())
    }

    fn clear(&mut self) {
        self.value = T::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(count: &mut u16, command: &[u8], reply: &mut Vec<u8>) {
        *count = count.wrapping_add(command.len() as u16);
        reply.extend_from_slice(&count.to_le_bytes());
    }

    fn snapshot<T: Value>(machine: &Plain<T>) -> Vec<u8> {
        let mut out = Vec::new();
        machine.snapshot(&mut out);
        out
    }

    #[test]
    fn a_value_is_changed_by_commands_and_goes_to_others_as_it_is() {
        let (mut machine, mut other, mut reply) = (Plain::new(add), Plain::new(add), vec![9]);
        machine.apply(LogIndex(1), b"abc", &mut reply);
        assert_eq!((*machine.value(), reply.as_slice()), (3, &[9, 3, 0][..]), "replies are appended");
        assert_eq!(other.restore(&snapshot(&machine)), Ok(()));
        assert_eq!(*other.value(), 3);
        reply.clear();
        other.query(b"whatever", &mut reply);
        assert_eq!(reply, [3, 0]);
        other.clear();
        assert_eq!(*other.value(), 0);
    }

    #[test]
    fn bytes_that_are_no_value_are_refused_and_change_nothing() {
        let mut machine = Plain::new(add);
        machine.apply(LogIndex(1), b"abc", &mut Vec::new());
        for length in (0..64).filter(|length| *length != 2) {
            assert_eq!(machine.restore(&vec![0xff; length]), Err(UnreadablePart), "{length} bytes");
        }
        assert_eq!(*machine.value(), 3);
        assert_eq!(String::decode(&[0xff]), Err(UnreadablePart));
        assert_eq!(machine.restore(&[0xff; 2]), Ok(()));
        machine.apply(LogIndex(2), b"a", &mut Vec::new());
        assert_eq!(*machine.value(), 0, "and whatever it is, it is gone on from there");
    }

    #[test]
    fn values_come_back_from_their_bytes() {
        fn comes_back<T: Value + PartialEq + std::fmt::Debug>(value: T) {
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            assert_eq!(T::decode(&bytes), Ok(value));
        }
        comes_back(0x1234_u16);
        comes_back(-7_i128);
        comes_back("ñandu".to_owned());
        comes_back(String::new());
        comes_back(vec![0_u8, 255]);
    }
}
