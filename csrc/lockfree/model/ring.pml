/* The ring with its cells, lanes and reaper: README.md says what is modelled, and what is not.
 *
 * One statement is one access to shared memory, in the order of index_ring.hpp, producer.cpp,
 * consumer.cpp, reaper.hpp and undertaker.hpp; everything in one `atomic` or `d_step` besides such
 * an access is private to the participant, or a ghost: state that only assertions read.
 *
 * Sizes and faults are macros: PRODUCERS, CONSUMERS, REAPERS (pool handles), CELLS, CAPACITY,
 * ITEMS (that each producer publishes), CRASHES, STOPS, BOUNCES (items that a consumer puts back
 * since it cannot map them). RUNS lets a producer publish two cells at once, and a consumer take
 * one of them. NO_PIN, NO_CIN, NO_RECHECK, NO_GENERATION, NO_PUBLICATIONS,
 * PIN_AFTER_RING, BY_ATTEMPT, ONLY_FIRST and NO_WALK break it, each in its way.
 */
#define LANES (PRODUCERS + CONSUMERS + REAPERS)
#define FIRST_CONSUMER PRODUCERS
#define FIRST_REAPER (PRODUCERS + CONSUMERS)
#define ALL_ITEMS (PRODUCERS * ITEMS)

/* Words, as in cell_word.hpp and slot.hpp, with narrower fields. */
#define FREE 0
#define OWNED 1
#define IN_RING 2
#define HELD 3
#define WORD(state, owner, count) ((state) | (owner) << 2 | (count) << 5)
#define STATE(word) ((word) & 3)
#define OWNER(word) ((word) >> 2 & 7)
/* Generation and publications. */
#define COUNTS(word) ((word) >> 5)
#ifdef NO_PUBLICATIONS
#define PUBLISHED(state) 0
#else
#define PUBLISHED(state) ((state) == IN_RING)
#endif
#define MOVED(word, state, owner) WORD(state, owner, COUNTS(word) + PUBLISHED(state))
#define PUBLICATIONS 8
#ifdef NO_GENERATION
#define FREED(word) WORD(FREE, 0, 0)
#else
#define FREED(word) WORD(FREE, 0, (COUNTS(word) / PUBLICATIONS + 1) * PUBLICATIONS)
#endif
#define EMPTY(lap) ((lap) << 5)
#define FULL(lap, cells) ((lap) << 5 | 16 | (cells))
#define IS_FULL(word) ((word) & 16)
#define PHASE(word) ((word) >> 4)
#define RUN_IN(word) ((word) & 15)
/* Consecutive cells; 0 for none. */
#define RUN(first, count) ((count) << 2 | (first))
#define FIRST(cells) ((cells) & 3)
#define COUNT(cells) ((cells) >> 2)
#define HOLDS(cells, c) ((c) >= FIRST(cells) && (c) < FIRST(cells) + COUNT(cells))

#define ALIVE 0
#define LEFT 1
#define DYING 2
#define DEAD 3

/* Shared memory. */
short word[CELLS];
short slot[CAPACITY];
byte tail, head;
byte pin[LANES], cin[LANES];
byte lane_state[LANES];
byte cell_producer[CELLS];
bool attempted[CELLS];

/* The kernel: byte locks of the lanes, and of the right to reap (lane + 1). */
bool locked[LANES];
byte right;
bool stopped[LANES];

/* A reaping that has to be retried is retried once something has moved: the same outcome as
 * retrying all the time, without a cycle of states that means nothing. */
bool pending, moved;
#define STEP moved = pending

/* Ghosts. Item 0 is none; tickets below `filled` were published, those below `emptied` taken. */
byte filled, emptied;
byte item[CELLS];
byte in_ring[CELLS];
byte holder[CELLS]; /* Lane + 1 that took it and has not given it back. */
bool published[ALL_ITEMS + 1], committed[ALL_ITEMS + 1];

#define alive(lane) (lane_state[lane] == ALIVE && locked[lane])
#define lost(lane) (lane_state[lane] == ALIVE && !locked[lane])
#define held_by_living(c) (holder[c] != 0 && locked[holder[c] - 1])

/* Control::free_cell, inside a step of the caller. */
inline free_cell(c) {
  assert(in_ring[c] == 0);
  assert(!held_by_living(c));
  word[c] = FREED(word[c]);
  item[c] = 0;
  holder[c] = 0;
  STEP
}

inline publish_ghost(c) {
  assert(in_ring[c] == 0);         /* Never twice in the ring, */
  assert(!held_by_living(c));      /* nor while somebody reads it, */
  assert(STATE(word[c]) == IN_RING && item[c] != 0);
  assert(!committed[item[c]]);     /* nor after its use. */
  in_ring[c] = 1;
  holder[c] = 0;
  published[item[c]] = true
}

inline publish_slot(t, cells) {
  assert(t == filled);
  filled++;
  slot[t % CAPACITY] = FULL(t / CAPACITY, cells);
  publish_ghost(FIRST(cells));
  if :: COUNT(cells) == 2 -> publish_ghost(FIRST(cells) + 1) :: else fi
}

inline take_ghost(c) {
  assert(in_ring[c] == 1 && !held_by_living(c));
  in_ring[c] = 0;
  holder[c] = me + 1
}

/* Every second ticket, by whoever has it, if it comes to that. Between its load and its
 * compare-and-swap a hint only grows, so that both are one step. */
#define TICKETS_PER_HINT 2
#define move_hint(hint, from, limit) \
  if \
  :: (from + 1) % TICKETS_PER_HINT == 0 && hint < from + 1 -> \
     hint = from + 1; \
     assert(hint <= limit) \
  :: else \
  fi

/* The looks at slots that were passed, which they stay, are one step with the look at the next.
 * Where a lane begins does not matter then: it comes to the same slot from any ticket that all
 * before were passed, be it the hint or where the lane was last. */
#ifdef NO_WALK
#define WALK(ticket, phases)
#else
#define WALK(ticket, phases) \
  do \
  :: PHASE(slot[ticket % CAPACITY]) > PHASE(EMPTY(ticket / CAPACITY)) + phases -> ticket++ \
  :: else -> break \
  od;
#endif

#if CAPACITY > 1
#define SOME_FULL (IS_FULL(slot[0]) || IS_FULL(slot[CAPACITY - 1]))
#else
#define SOME_FULL IS_FULL(slot[0])
#endif

/* Where a participant is: before which access. */
#define LEASE 0
#define FILL 1
#define PIN 2
#define MARK 3
#define TAIL 4
#define SLOT 5
#define PUBLISH 6
#define ADVANCE_TAIL 8
#define UNPIN 9
#define AFTER_PUSH 10
#define WAIT 11
#define HEAD 12
#define LOOK 13
#define INTEND 15
#define TAKE 16
#define ADVANCE_HEAD 18
#define HOLD 19
#define UNINTEND 20
#define USE 21
#define NEXT_LANE 22
#define DYING_LANE 23
#define SCAN 24
#define NEXT_MARKED 25
#define READ_INTENT 26
#define READ_INTENDED_WORD 27
#define CHECK_PIN 28
#define LOOK_IN_RING 29
#define LOOK_FOR_INTENT 30
#define LOOK_AGAIN 31
#define CHECK_WORD 32
#define ATTEMPT 33
#define FREE_IT 34
#define CLEAR_PIN 35
#define CLEAR_CIN 36
#define BURIED 37

/* IndexRing::push_run of `cells`, with c, t and w of the participant; there is a slot for every
 * cell. */
#ifdef NO_PIN
#define SET_PIN(value) skip
#else
#define SET_PIN(value) pin[me] = value; STEP
#endif
#define PUSH_STEPS \
  :: d_step { at == PIN -> SET_PIN(cells); k = 0; at = MARK } \
  :: d_step { at == MARK -> \
       word[FIRST(cells) + k] = MOVED(word[FIRST(cells) + k], IN_RING, me); \
       STEP; \
       k++; \
       if :: k == COUNT(cells) -> k = 0; at = TAIL :: else fi } \
  :: d_step { at == TAIL -> t = tail; at = SLOT } \
  :: d_step { at == SLOT -> \
       WALK(t, 0) \
       w = slot[t % CAPACITY]; \
       assert(PHASE(w) >= PHASE(EMPTY(t / CAPACITY))); \
       if \
       :: w == EMPTY(t / CAPACITY) -> at = PUBLISH \
       :: else -> at = TAIL /* Without the walk alone. */ \
       fi } \
  :: d_step { at == PUBLISH -> \
       if \
       :: slot[t % CAPACITY] == w -> publish_slot(t, cells); STEP; at = ADVANCE_TAIL \
       :: else -> at = SLOT \
       fi } \
  :: d_step { at == ADVANCE_TAIL -> move_hint(tail, t, filled); at = UNPIN } \
  :: d_step { at == UNPIN -> SET_PIN(0); t = 0; w = 0; cells = 0; at = AFTER_PUSH }

proctype producer(byte me) {
  byte c, t, cells, k, count;
  short w;
  byte at = LEASE;
  {
    do
    :: atomic { /* Slabs::try_own: one compare-and-swap, of whichever cell is free. */
         at == LEASE && count < ITEMS;
         if
         :: STATE(word[0]) == FREE -> c = 0
         :: STATE(word[CELLS - 1]) == FREE -> c = CELLS - 1
         fi;
         word[c] = MOVED(word[c], OWNED, me);
         STEP;
         at = FILL
       }
    :: d_step { at == FILL -> /* Nobody reads these of a cell that is OWNED. */
         attempted[c] = false;
         cell_producer[c] = me;
         count++;
         item[c] = me * ITEMS + count;
         cells = RUN(c - COUNT(cells), COUNT(cells) + 1);
         at = PIN
       }
#ifdef RUNS
    :: atomic { /* The next cell, too, for one push of both. */
         at == PIN && c + 1 < CELLS && count < ITEMS && STATE(word[c + 1]) == FREE;
         c++;
         word[c] = MOVED(word[c], OWNED, me);
         STEP;
         at = FILL
       }
#endif
    PUSH_STEPS
    :: d_step { at == AFTER_PUSH -> c = 0; at = LEASE }
    :: at == LEASE && count == ITEMS -> break
    od;
    atomic { lane_state[me] = LEFT; locked[me] = false; STEP }
  } unless { !locked[me] || stopped[me] }
}

#ifdef NO_CIN
#define SET_CIN(value) skip
#else
#define SET_CIN(value) cin[me] = value; STEP
#endif

proctype consumer(byte me) {
  byte c, h, t, cells, k, bounces;
  short w;
  byte at = WAIT;
  {
    do
    :: d_step { /* Event::wait on looks_empty, which looks again and again. */
         at == WAIT && SOME_FULL -> at = HEAD
       }
    /* IndexRing::pop */
    :: d_step { at == HEAD -> h = head; at = LOOK }
    :: d_step { at == LOOK ->
         WALK(h, 1)
         w = slot[h % CAPACITY];
         assert(PHASE(w) >= PHASE(EMPTY(h / CAPACITY)));
         if
         :: w == EMPTY(h / CAPACITY) -> at = AFTER_PUSH
         :: PHASE(w) == PHASE(FULL(h / CAPACITY, 0)) -> cells = RUN_IN(w); at = INTEND
         :: else -> at = HEAD /* Without the walk alone. */
         fi
       }
    :: d_step { at == AFTER_PUSH -> SET_CIN(0); c = 0; h = 0; w = 0; cells = 0; at = WAIT }
    :: d_step { at == INTEND -> SET_CIN(cells); at = TAKE }
#ifdef RUNS
    :: d_step { at == INTEND && COUNT(cells) == 2 -> /* Wants one only. */
         cells = RUN(FIRST(cells), 1);
         SET_CIN(cells);
         at = TAKE
       }
#endif
    :: d_step { at == TAKE ->
         if
         :: slot[h % CAPACITY] == w ->
            take_ghost(FIRST(cells));
            if :: COUNT(cells) == 2 -> take_ghost(FIRST(cells) + 1) :: else fi;
            if
            :: COUNT(RUN_IN(w)) > COUNT(cells) ->
               slot[h % CAPACITY] = FULL(h / CAPACITY, RUN(FIRST(cells) + 1, 1));
               h = 0;
               w = 0;
               at = HOLD
            :: else ->
               assert(h == emptied);
               emptied++;
               slot[h % CAPACITY] = EMPTY(h / CAPACITY + 1);
               at = ADVANCE_HEAD
            fi;
            STEP
         :: else -> cells = 0; at = LOOK
         fi
       }
    :: d_step { at == ADVANCE_HEAD -> move_hint(head, h, emptied); h = 0; w = 0; at = HOLD }
    :: d_step { at == HOLD ->
         word[FIRST(cells) + k] = MOVED(word[FIRST(cells) + k], HELD, me);
         STEP;
         k++;
         if :: k == COUNT(cells) -> k = 0; at = UNINTEND :: else fi
       }
    :: d_step { at == UNINTEND -> SET_CIN(0); c = FIRST(cells); at = USE }
    :: d_step { at == USE -> /* Reads it, and gives it back: from then on it is committed. */
         assert(word[c] == WORD(HELD, me, COUNTS(word[c])) && holder[c] == me + 1);
         assert(published[item[c]] && !committed[item[c]]);
         committed[item[c]] = true;
         holder[c] = 0;
         free_cell(c);
         if
         :: c + 1 < FIRST(cells) + COUNT(cells) -> c++
         :: else -> c = 0; cells = 0; at = WAIT
         fi
       }
    :: d_step { at == USE && COUNT(cells) == 1 && bounces < BOUNCES -> /* Cannot map it. */
         bounces++;
         holder[c] = 0;
         at = PIN
       }
    PUSH_STEPS
    od
  } unless { !locked[me] || stopped[me] }
}

/* The order of settle_intended's looks. */
#ifdef PIN_AFTER_RING
#define FIRST_CHECK LOOK_IN_RING
#define SECOND_CHECK LOOK_FOR_INTENT
#define THIRD_CHECK CHECK_PIN
#else
#define FIRST_CHECK CHECK_PIN
#define SECOND_CHECK LOOK_IN_RING
#define THIRD_CHECK LOOK_FOR_INTENT
#endif
#ifdef NO_RECHECK
#define AFTER_INTENT JUDGED
#else
#define AFTER_INTENT LOOK_AGAIN
#endif
/* What a dead lane marked as published and nobody ever saw: freed, unless it is a redelivery. */
#ifdef BY_ATTEMPT
#define IS_REDELIVERY attempted[c]
#else
#define IS_REDELIVERY cell_producer[c] != d
#endif
#ifdef ONLY_FIRST
#define SETTLED_OF(taking) 1
#else
#define SETTLED_OF(taking) COUNT(taking)
#endif
#define JUDGED (settling_intended || IS_REDELIVERY -> ATTEMPT : FREE_IT)

#if LANES > 5
#define ANY_LOST (lost(0) || lost(1) || lost(2) || lost(3) || lost(4) || lost(5))
#elif LANES > 4
#define ANY_LOST (lost(0) || lost(1) || lost(2) || lost(3) || lost(4))
#elif LANES > 3
#define ANY_LOST (lost(0) || lost(1) || lost(2) || lost(3))
#else
#define ANY_LOST (lost(0) || lost(1) || lost(2))
#endif

#define BY_NOBODY 0
#define BY_DEAD 1

/* A pool handle's monitor: Undertaker::bury_the_dead and Reaper::run. The walk over the rings before
 * settle_marked only saves time. */
proctype reaper(byte me) {
  byte d, c, i, found, t, cells, k, taking;
  short w, seen;
  byte at = WAIT;
  short marked[CELLS]; /* The word, or 0. */
  bool settling_intended, done, all;
  {
    do
    :: d_step { /* Something to bury, and the right to. */
         at == WAIT && right == 0 && (pending && moved || ANY_LOST) ->
         right = me + 1;
         pending = true;
         moved = false;
         all = true;
         d = 0;
         at = NEXT_LANE
       }
    :: d_step { at == NEXT_LANE ->
         do
         :: d < LANES && !lost(d) && lane_state[d] != DYING -> d++
         :: else -> break
         od;
         if
         :: d < LANES -> at = DYING_LANE
         :: else ->
            right = 0;
            if :: all -> pending = false; moved = false :: else fi;
            d = 0;
            all = false;
            at = WAIT
         fi
       }
    :: d_step { at == DYING_LANE -> lane_state[d] = DYING; done = true; c = 0; at = SCAN }
    :: d_step { at == SCAN ->
         if
         :: c == CELLS -> c = 0; at = NEXT_MARKED
         :: else ->
            seen = word[c];
            if
            :: OWNER(seen) != d || STATE(seen) == FREE -> c++
            :: else ->
               if
               :: STATE(seen) == OWNED -> at = FREE_IT
               :: STATE(seen) == HELD -> at = ATTEMPT
               :: else -> marked[c] = seen; c++
               fi
            fi
         fi
       }
    :: d_step { at == AFTER_PUSH ->
         seen = 0;
         if
         :: settling_intended ->
            c++;
            if
            :: c < FIRST(taking) + SETTLED_OF(taking) -> at = READ_INTENDED_WORD
            :: else -> at = CLEAR_PIN
            fi
         :: !settling_intended && marked[c] != 0 -> marked[c] = 0; c++; at = NEXT_MARKED
         :: else -> c++; at = SCAN
         fi
       }
    /* Reaper::settle_marked */
    :: d_step { at == NEXT_MARKED ->
         do
         :: c < CELLS && marked[c] == 0 -> c++
         :: else -> break
         od;
         if
         :: c < CELLS -> seen = marked[c]; i = 0; at = LOOK_IN_RING
         :: else -> settling_intended = true; at = READ_INTENT
         fi
       }
    /* Reaper::settle_intended */
    :: d_step { at == READ_INTENT ->
         if
         :: cin[d] == 0 -> at = CLEAR_PIN
         :: else -> taking = cin[d]; c = FIRST(taking); at = READ_INTENDED_WORD
         fi
       }
    :: d_step { at == READ_INTENDED_WORD ->
         seen = word[c];
         if
         :: STATE(seen) != IN_RING -> at = AFTER_PUSH
         :: else -> i = 0; at = FIRST_CHECK
         fi
       }
    :: d_step { at == CHECK_PIN ->
         if
         :: HOLDS(pin[OWNER(seen)], c) && alive(OWNER(seen)) -> done = false; at = AFTER_PUSH
         :: else -> at = SECOND_CHECK
         fi
       }
    /* Reaper::in_ring, then intent_on, then both looks again. */
    :: d_step { at == LOOK_IN_RING ->
         if
         :: i == CAPACITY ->
            i = FIRST_CONSUMER;
            found = BY_NOBODY;
            if :: settling_intended -> at = THIRD_CHECK :: else -> at = LOOK_FOR_INTENT fi
         :: IS_FULL(slot[i]) && HOLDS(RUN_IN(slot[i]), c) -> i = 0; at = AFTER_PUSH
         :: else -> i++
         fi
       }
    :: d_step { at == LOOK_FOR_INTENT -> /* Producers and pool handles never have a cin. */
         if
         :: i < FIRST_REAPER && HOLDS(cin[i], c) && alive(i) ->
            done = false;
            i = 0;
            found = 0;
            at = AFTER_PUSH
         :: i < FIRST_REAPER && HOLDS(cin[i], c) && !alive(i) -> found = BY_DEAD; i++
         :: i < FIRST_REAPER && !HOLDS(cin[i], c) -> i++
         :: else ->
            i = 0;
            if
            :: found == BY_DEAD && !settling_intended -> at = AFTER_PUSH
            :: else -> at = AFTER_INTENT
            fi;
            found = 0
         fi
       }
    :: d_step { at == LOOK_AGAIN ->
         if
         :: i == CAPACITY -> i = 0; at = CHECK_WORD
         :: IS_FULL(slot[i]) && HOLDS(RUN_IN(slot[i]), c) ->
            done = false;
            moved = true;
            i = 0;
            at = AFTER_PUSH
         :: else -> i++
         fi
       }
    :: d_step { at == CHECK_WORD ->
         if
         :: word[c] != seen -> done = false; moved = true; at = AFTER_PUSH
         :: else -> at = JUDGED
         fi
       }
    :: d_step { at == FREE_IT -> free_cell(c); at = AFTER_PUSH }
    :: d_step { at == ATTEMPT -> attempted[c] = true; cells = RUN(c, 1); at = PIN }
    PUSH_STEPS
    :: d_step { at == CLEAR_PIN ->
         settling_intended = false;
         taking = 0;
         c = 0;
         seen = 0;
         if
         :: done -> pin[d] = 0; at = CLEAR_CIN
         :: else -> all = false; d++; at = NEXT_LANE
         fi
       }
    :: d_step { at == CLEAR_CIN -> cin[d] = 0; done = false; at = BURIED }
    :: d_step { at == BURIED -> lane_state[d] = DEAD; d++; at = NEXT_LANE }
    od
  } unless { !locked[me] || stopped[me] }
}

/* Ends or stops any participant, at any step of its own; the last pool handle stays. */
proctype faults() {
  byte crashes, stops, i;
  do
  :: crashes < CRASHES ->
     atomic {
       i = 0;
       do
       :: i < LANES - 2 -> i++
       :: break
       od;
       if
       :: locked[i] && !stopped[i] ->
          locked[i] = false;
          if :: right == i + 1 -> right = 0 :: else fi;
          STEP
       :: else
       fi;
       i = 0;
       crashes++
     }
  :: stops < STOPS ->
     atomic {
       i = 0;
       do
       :: i < FIRST_REAPER - 1 -> i++
       :: break
       od;
       if :: locked[i] -> stopped[i] = true :: else fi;
       i = 0;
       stops++
     }
  :: break
  od
}

/* When nobody can move any more: nothing is lost, nothing leaked, nobody waits for the stopped. */
#define MOVED_BY(c, lane) (stopped[lane] && (HOLDS(pin[lane], c) || HOLDS(cin[lane], c) || \
  STATE(word[c]) != FREE && OWNER(word[c]) == lane && !(STATE(word[c]) == IN_RING && in_ring[c])))

proctype at_rest() {
  byte c, i, kept;
  bool served;
  atomic {
    timeout;
    do
    :: FIRST_CONSUMER + i < FIRST_REAPER ->
       served = served || alive(FIRST_CONSUMER + i) && !stopped[FIRST_CONSUMER + i];
       i++
    :: else -> break
    od;
    do
    :: c < CELLS ->
       i = 0;
       do
       :: i < LANES && !MOVED_BY(c, i) -> i++
       :: else -> break
       od;
       if
       :: i < LANES -> kept++ /* In the hands of somebody who was stopped. */
       :: i == LANES && in_ring[c] == 1 -> assert(!served && STATE(word[c]) == IN_RING); kept++
       :: else -> assert(STATE(word[c]) == FREE)
       fi;
       if
       :: item[c] != 0 -> committed[item[c]] = true /* Not lost, that is. */
       :: else
       fi;
       c++
    :: else -> break
    od;
    i = 1;
    do
    :: i <= ALL_ITEMS -> assert(!published[i] || committed[i]); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < LANES ->
       /* Everybody dead was reaped, unless somebody who is stopped may still hold its cell. */
       assert(locked[i] || lane_state[i] == LEFT || lane_state[i] == DEAD || kept > 0);
       /* Who was left alone has published everything, unless no cell is left to publish. */
       assert(i >= PRODUCERS || !locked[i] || stopped[i] || kept == CELLS);
       i++
    :: else -> break
    od
  }
}

init {
  atomic {
    byte i;
    do
    :: i < LANES ->
       locked[i] = true;
       if
       :: i < FIRST_CONSUMER -> run producer(i)
       :: i >= FIRST_CONSUMER && i < FIRST_REAPER -> run consumer(i)
       :: else -> run reaper(i)
       fi;
       i++
    :: else -> break
    od;
    i = 0;
    run faults();
    run at_rest()
  }
}
