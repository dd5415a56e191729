//! The words of a request, left where they are in the buffer that they arrived in.

use martlet_fabric::Pulse;

/// The place of one argument in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// The place of `len` bytes from `start` on. Input buffers stay below 4 GiB.
    #[inline]
    pub fn new(start: usize, len: usize) -> Span {
        Span { start: start as u32, len: len as u32 }
    }
}

/// A request: its name and its arguments, none of them copied.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// The arguments at `spans` in `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8], spans: &'a [Span]) -> Args<'a> {
        Args { bytes, spans }
    }

    /// How many there are, the command's name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether the request is empty: a blank line, or an array of none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `i`; 0 is the command's name.
    ///
    /// # Panics
    /// When there is none: the command table's arity is checked before a handler runs.
    #[inline]
    pub fn at(&self, i: usize) -> &'a [u8] {
        let span = self.spans[i];
        &self.bytes[span.start as usize..][..span.len as usize]
    }

    /// The argument at `i`, if there is one.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        (i < self.spans.len()).then(|| self.at(i))
    }

    /// Whether the argument at `i` is `word`, in upper or lower case.
    #[inline]
    pub fn is(&self, i: usize, word: &str) -> bool {
        self.get(i).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// The arguments from `i` on.
    #[inline]
    pub fn from(&self, i: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let this = *self;
        (i.min(this.len())..this.len()).map(move |i| this.at(i))
    }

    /// The request that consists of the arguments from `i` on.
    pub fn without(&self, i: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: &self.spans[i.min(self.len())..] }
    }

    /// The total length of the arguments, in bytes.
    pub fn total_bytes(&self) -> usize {
        self.spans.iter().map(|s| s.len as usize).sum()
    }
}

/// What each queued request counts as, besides its bytes and the places of its arguments.
const REQUEST_BYTES: usize = 64;

/// Requests that own their bytes, for requests that have to wait: the commands of a transaction. They share a few allocations, however many there are, so
/// giving up a million of them takes no longer than giving up one.
#[derive(Clone, Debug, Default)]
pub struct QueuedRequests {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Where the arguments of each request end in `spans`.
    ends: Vec<u32>,
}

impl QueuedRequests {
    /// What a request counts as in memory, in bytes.
    pub fn size_of(args: Args<'_>) -> usize {
        REQUEST_BYTES + args.total_bytes() + args.len() * size_of::<Span>()
    }

    /// Appends a copy of a request. The total must stay below 4 GiB.
    pub fn push(&mut self, args: Args<'_>, pulse: &Pulse) {
        for arg in args.from(0) {
            self.spans.push(Span::new(self.bytes.len(), arg.len()));
            pulse.append(&mut self.bytes, arg);
        }
        self.ends.push(u32::try_from(self.spans.len()).expect("no more arguments than bytes"));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets all of them, and gives their memory back.
    pub fn clear(&mut self) {
        *self = QueuedRequests::default();
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Args<'_>> {
        let mut from = 0;
        self.ends.iter().map(move |end| {
            let spans = &self.spans[from..*end as usize];
            from = *end as usize;
            Args::new(&self.bytes, spans)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_requests_come_back_in_order_with_empty_arguments_too() {
        let requests: [&[&str]; 4] = [&["SET", "k", ""], &["PING"], &["MSET", "", "", "a", "b"], &["GET", "k"]];
        let mut queue = QueuedRequests::default();
        for request in requests {
            let (mut bytes, mut spans) = (Vec::new(), Vec::new());
            for word in request {
                spans.push(Span::new(bytes.len(), word.len()));
                bytes.extend_from_slice(word.as_bytes());
            }
            queue.push(Args::new(&bytes, &spans), &Pulse::default());
        }
        let back: Vec<Vec<&[u8]>> = queue.iter().map(|args| args.from(0).collect()).collect();
        let expected: Vec<Vec<&[u8]>> = requests.iter().map(|r| r.iter().map(|w| w.as_bytes()).collect()).collect();
        assert_eq!((queue.len(), back), (4, expected));
        queue.clear();
        assert!(queue.is_empty() && queue.iter().next().is_none());
    }
}
