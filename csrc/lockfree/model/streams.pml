/* memory::StreamPage with one slab: streams hand over generations, and any process may die.
 * README.md says what is modelled.
 *
 * One statement is one access to shared memory, or one operation of a stream. A lane is a process: a
 * host, and a stream, which runs what the host has enqueued, in order. After the host has died, the
 * stream may go on for some operations. Generations count from 1, and a word is
 * generation * 4 + CONFIRMED + POISON. NO_ORDER, NO_HOLD, EAGER, FORGETFUL and TOO_EARLY each break a
 * part.
 */
#define LANES (PRODUCERS + CONSUMERS)
#define POISON 1
#define CONFIRMED 2
#define REACHED(word, g) ((word) >= (g) * 4)

/* States of the cell. */
#define FREE 0
#define LEASED 1
#define PUBLISHED 2
#define TAKEN 3

/* Operations of a stream. An overwrite and a gather take two steps each. */
#define TEAR 0
#define FILL 1
#define WRITTEN 2
#define WAIT 3
#define LOOK 4
#define LOOK_AGAIN 5
#define READ 6

byte written, read;
byte writer_of, writer; /* One word: generation and lane change together. */
byte reader_of, reader; /* Also one. */
byte data;              /* The generation whose data is there; 0 is a mixture. */

byte cell, owner, generation; /* The last: of the descriptor. */
bool alive[LANES], ended[LANES], settled[LANES];
byte gathered[LANES]; /* By its stream, ... */
byte passed[LANES];   /* ... for this generation. */

chan stream[LANES] = [4] of { byte, byte };

#ifdef NO_HOLD
#define HELD false
#else
#define HELD (written % 4 == POISON)
#endif
#ifdef EAGER
#define BEGUN(g) false
#else
#define BEGUN(g) (writer_of == (g))
#endif
#define NEXT (read / 4 + 1)
#define IS_FREE (reader_of != NEXT && (REACHED(written, NEXT) || !BEGUN(NEXT) && !HELD))
#define AWAITS_WRITE(g) (writer_of == (g) && !REACHED(written, g))

proctype producer(byte me) provided (alive[me]) {
  byte g;
  do
  :: atomic {
       cell == FREE && NEXT <= GENERATIONS && IS_FREE ->
       cell = LEASED; owner = me
     }
     g = NEXT;
     if
     :: REACHED(written, g) -> /* Nobody reads it: skipped. */
        d_step {
          if
          :: written == g * 4 + POISON -> written = written + CONFIRMED
          :: else
          fi
        }
        read = g * 4;
        g++
     :: else
     fi;
     stream[me]!TEAR(g);
     stream[me]!FILL(g);
     if
     :: d_step { writer_of = g; writer = me }
        stream[me]!WRITTEN(g);
        if
        :: generation = g; cell = PUBLISHED
        :: cell = FREE /* It could not be published. */
        fi
     :: d_step { reader_of = g; reader = me } /* Aborted. */
        stream[me]!READ(g);
        cell = FREE
     fi
  od
}

proctype consumer(byte me) provided (alive[me]) {
  byte g;
  bool released, confirmed;
  do
  :: atomic { cell == PUBLISHED -> cell = TAKEN; owner = me; g = generation }
     if
     :: cell = FREE; goto next /* It cannot be read. */
     :: skip
     fi;
     stream[me]!WAIT(g);
     stream[me]!LOOK(g);
     stream[me]!LOOK_AGAIN(g);
     released = false;
     confirmed = false;
     do
     :: !released ->
        d_step { reader_of = g; reader = me }
        stream[me]!READ(g);
        cell = FREE;
        released = true
     :: !confirmed && passed[me] == g ->
        if
        :: d_step { written / 4 == g && written % 4 != 0 ->
#ifdef FORGETFUL
             written = g * 4
#else
             written = g * 4 + POISON + CONFIRMED
#endif
           }
        :: else -> assert(gathered[me] == g)
        fi;
        confirmed = true
     :: released && confirmed -> break
     od;
next:
     skip
  od
}

proctype device(byte me) {
  byte operation, g;
  do
  :: !alive[me] -> ended[me] = true; break
  :: stream[me]?<operation, g> ->
     if
     :: !alive[me]
     :: atomic {
          operation != WAIT || REACHED(written, g) -> stream[me]?operation, g;
          if
          :: operation == TEAR -> data = 0
          :: operation == FILL -> data = g
          :: operation == WRITTEN -> written = g * 4
          :: operation == WAIT
          :: operation == LOOK -> gathered[me] = data
          :: operation == LOOK_AGAIN ->
             if
             :: gathered[me] != data -> gathered[me] = 0
             :: else
             fi;
             passed[me] = g
          :: operation == READ -> read = g * 4
          fi;
          operation = 0;
          g = 0
        }
     fi
  od
}

/* Settles a lane, then what it held. The shipped one repeats a call instead of waiting. */
proctype recovery(byte l) {
  byte g, by;
#ifdef TOO_EARLY
  !alive[l];
#else
  !alive[l] && ended[l];
#endif
  d_step { g = writer_of; by = writer }
  if
  :: by == l && g > 0 && !REACHED(written, g) ->
     if
     :: !REACHED(read, g) -> written = g * 4 + POISON
     :: else
     fi
  :: else
  fi;
  d_step { g = reader_of; by = reader }
  if
  :: by == l && g > 0 ->
     if
     :: !REACHED(read, g) ->
#ifndef NO_ORDER
        !AWAITS_WRITE(g);
#endif
        read = g * 4 + POISON
     :: else
     fi;
     if
     :: written == g * 4 + POISON -> written = g * 4 + POISON + CONFIRMED
     :: else
     fi
  :: else
  fi;
  if
  :: owner == l && (cell == LEASED || cell == TAKEN) ->
     if
     :: cell == LEASED || REACHED(read, generation) -> cell = FREE
     :: else -> cell = PUBLISHED
     fi
  :: else
  fi;
  settled[l] = true
}

proctype death() {
  byte l, left = CRASHES;
  do
  :: left > 0 ->
     left--;
     l = 0;
     do
     :: l < LANES - 1 -> l++
     :: break
     od;
     alive[l] = false
  :: left == 0 -> break
  od
}

init {
  byte l;
  bool consumes;
  atomic {
    do
    :: l < LANES ->
       alive[l] = true;
       run device(l);
       run recovery(l);
       if
       :: l < PRODUCERS -> run producer(l)
       :: else -> run consumer(l)
       fi;
       l++
    :: else -> break
    od;
    run death()
  }
  timeout; /* When no process can move. */
  d_step {
    l = 0;
    do
    :: l < LANES ->
       assert(!alive[l] || empty(stream[l]));
       assert(alive[l] || settled[l]);
       consumes = consumes || l >= PRODUCERS && alive[l];
       l++
    :: else -> break
    od
  }
  assert(cell == FREE && IS_FREE || cell == PUBLISHED && !consumes)
}
