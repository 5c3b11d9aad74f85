/* neighbours.h - words that headers in front of amp.h define as macros, each so that code with it does not compile. */
/* windows.h and its kin */
#undef near
#define near ?near?
#undef far
#define far ?far?
#undef NEAR
#define NEAR ?NEAR?
#undef FAR
#define FAR ?FAR?
#undef small
#define small ?small?
#undef hyper
#define hyper ?hyper?
#undef interface
#define interface ?interface?
#undef ERROR
#define ERROR ?ERROR?
#undef IN
#define IN ?IN?
#undef OUT
#define OUT ?OUT?
#undef OPTIONAL
#define OPTIONAL ?OPTIONAL?
#undef CONST
#define CONST ?CONST?
#undef VOID
#define VOID ?VOID?
#undef DELETE
#define DELETE ?DELETE?
#undef IGNORE
#define IGNORE ?IGNORE?
#undef RELATIVE
#define RELATIVE ?RELATIVE?
#undef ABSOLUTE
#define ABSOLUTE ?ABSOLUTE?
#undef TRANSPARENT
#define TRANSPARENT ?TRANSPARENT?
#undef OPAQUE
#define OPAQUE ?OPAQUE?
#undef NO_ERROR
#define NO_ERROR ?NO_ERROR?
#undef STRICT
#define STRICT ?STRICT?
#undef PASCAL
#define PASCAL ?PASCAL?
#undef CALLBACK
#define CALLBACK ?CALLBACK?
#undef THIS
#define THIS ?THIS?
#undef PURE
#define PURE ?PURE?
#undef DOMAIN
#define DOMAIN ?DOMAIN?
#undef OVERFLOW
#define OVERFLOW ?OVERFLOW?
#undef UNDERFLOW
#define UNDERFLOW ?UNDERFLOW?
#undef SING
#define SING ?SING?
#undef TRUE
#define TRUE ?TRUE?
#undef FALSE
#define FALSE ?FALSE?
/* X11 */
#undef Bool
#define Bool ?Bool?
#undef Status
#define Status ?Status?
#undef None
#define None ?None?
#undef Success
#define Success ?Success?
#undef True
#define True ?True?
#undef False
#define False ?False?
#undef Always
#define Always ?Always?
#undef Above
#define Above ?Above?
#undef Below
#define Below ?Below?
#undef Complex
#define Complex ?Complex?
#undef Unsorted
#define Unsorted ?Unsorted?
#undef CurrentTime
#define CurrentTime ?CurrentTime?
#undef KeyPress
#define KeyPress ?KeyPress?
#undef FocusIn
#define FocusIn ?FocusIn?
#undef Expose
#define Expose ?Expose?
#undef ControlMask
#define ControlMask ?ControlMask?
/* Arduino, termios.h */
#undef B0
#define B0 ?B0?
#undef B1
#define B1 ?B1?
#undef B50
#define B50 ?B50?
#undef DEC
#define DEC ?DEC?
#undef HEX
#define HEX ?HEX?
#undef OCT
#define OCT ?OCT?
#undef BIN
#define BIN ?BIN?
#undef PI
#define PI ?PI?
#undef HALF_PI
#define HALF_PI ?HALF_PI?
#undef TWO_PI
#define TWO_PI ?TWO_PI?
#undef EULER
#define EULER ?EULER?
#undef DEFAULT
#define DEFAULT ?DEFAULT?
#undef EXTERNAL
#define EXTERNAL ?EXTERNAL?
#undef INTERNAL
#define INTERNAL ?INTERNAL?
#undef HIGH
#define HIGH ?HIGH?
#undef LOW
#define LOW ?LOW?
#undef INPUT
#define INPUT ?INPUT?
#undef OUTPUT
#define OUTPUT ?OUTPUT?
#undef CHANGE
#define CHANGE ?CHANGE?
#undef FALLING
#define FALLING ?FALLING?
#undef RISING
#define RISING ?RISING?
#undef ECHO
#define ECHO ?ECHO?
/* Qt, complex.h */
#undef signals
#define signals ?signals?
#undef slots
#define slots ?slots?
#undef emit
#define emit ?emit?
#undef forever
#define forever ?forever?
#undef I
#define I ?I?
#undef complex
#define complex ?complex?
#undef imaginary
#define imaginary ?imaginary?
/* programs */
#undef PACKED
#define PACKED ?PACKED?
#undef SOME
#define SOME ?SOME?
#undef BLOCKS
#define BLOCKS ?BLOCKS?
#undef BLOCK
#define BLOCK ?BLOCK?
#undef CHUNK
#define CHUNK ?CHUNK?
#undef TILE
#define TILE ?TILE?
#undef GROUP
#define GROUP ?GROUP?
#undef SIZE
#define SIZE ?SIZE?
#undef COUNT
#define COUNT ?COUNT?
#undef ROWS
#define ROWS ?ROWS?
#undef COLS
#define COLS ?COLS?
#undef EMPTY
#define EMPTY ?EMPTY?
#undef FULL
#define FULL ?FULL?
#undef FIRST
#define FIRST ?FIRST?
#undef LAST
#define LAST ?LAST?
#undef ALL
#define ALL ?ALL?
#undef NONE
#define NONE ?NONE?
#undef YES
#define YES ?YES?
#undef NO
#define NO ?NO?
#undef ON
#define ON ?ON?
#undef OFF
#define OFF ?OFF?
#undef OK
#define OK ?OK?
#undef FAIL
#define FAIL ?FAIL?
#undef SUCCESS
#define SUCCESS ?SUCCESS?
#undef DEBUG
#define DEBUG ?DEBUG?
#undef TEST
#define TEST ?TEST?
#undef LOG
#define LOG ?LOG?
#undef EXPORT
#define EXPORT ?EXPORT?
#undef API
#define API ?API?
#undef PUBLIC
#define PUBLIC ?PUBLIC?
#undef PRIVATE
#define PRIVATE ?PRIVATE?
#undef INLINE
#define INLINE ?INLINE?
#undef LIKELY
#define LIKELY ?LIKELY?
#undef UNLIKELY
#define UNLIKELY ?UNLIKELY?
#undef UNUSED
#define UNUSED ?UNUSED?
#undef LITTLE_ENDIAN
#define LITTLE_ENDIAN ?LITTLE_ENDIAN?
#undef BIG_ENDIAN
#define BIG_ENDIAN ?BIG_ENDIAN?
#undef PAGE_SIZE
#define PAGE_SIZE ?PAGE_SIZE?
#undef ALIGN
#define ALIGN ?ALIGN?
#undef BYTE
#define BYTE ?BYTE?
#undef WORD
#define WORD ?WORD?
#undef DWORD
#define DWORD ?DWORD?
/* AssertMacros.h, with arguments */
#undef check
#define check(...) ?check?
#undef verify
#define verify(...) ?verify?
#undef require
#define require(...) ?require?
#undef check_noerr
#define check_noerr(...) ?check_noerr?
#undef require_noerr
#define require_noerr(...) ?require_noerr?
/* windows.h, sys/param.h, with arguments */
#undef min
#define min(...) ?min?
#undef max
#define max(...) ?max?
#undef MIN
#define MIN(...) ?MIN?
#undef MAX
#define MAX(...) ?MAX?
#undef LOBYTE
#define LOBYTE(...) ?LOBYTE?
#undef HIBYTE
#define HIBYTE(...) ?HIBYTE?
#undef LOWORD
#define LOWORD(...) ?LOWORD?
#undef HIWORD
#define HIWORD(...) ?HIWORD?
#undef RGB
#define RGB(...) ?RGB?
#undef howmany
#define howmany(...) ?howmany?
#undef roundup
#define roundup(...) ?roundup?
#undef powerof2
#define powerof2(...) ?powerof2?
#undef major
#define major(...) ?major?
#undef minor
#define minor(...) ?minor?
#undef makedev
#define makedev(...) ?makedev?
/* Arduino, with arguments */
#undef abs
#define abs(...) ?abs?
#undef round
#define round(...) ?round?
#undef sq
#define sq(...) ?sq?
#undef constrain
#define constrain(...) ?constrain?
#undef radians
#define radians(...) ?radians?
#undef degrees
#define degrees(...) ?degrees?
#undef lowByte
#define lowByte(...) ?lowByte?
#undef highByte
#define highByte(...) ?highByte?
#undef bit
#define bit(...) ?bit?
#undef bitRead
#define bitRead(...) ?bitRead?
#undef bitSet
#define bitSet(...) ?bitSet?
#undef bitWrite
#define bitWrite(...) ?bitWrite?
#undef word
#define word(...) ?word?
#undef F
#define F(...) ?F?
/* curses.h, strings.h, with arguments */
#undef move
#define move(...) ?move?
#undef clear
#define clear(...) ?clear?
#undef erase
#define erase(...) ?erase?
#undef refresh
#define refresh(...) ?refresh?
#undef addstr
#define addstr(...) ?addstr?
#undef timeout
#define timeout(...) ?timeout?
#undef scroll
#define scroll(...) ?scroll?
#undef box
#define box(...) ?box?
#undef raw
#define raw(...) ?raw?
#undef echo
#define echo(...) ?echo?
#undef filter
#define filter(...) ?filter?
#undef index
#define index(...) ?index?
#undef rindex
#define rindex(...) ?rindex?
#undef bzero
#define bzero(...) ?bzero?
/* programs, with arguments */
#undef cast
#define cast(...) ?cast?
#undef foreach
#define foreach(...) ?foreach?
#undef likely
#define likely(...) ?likely?
#undef unlikely
#define unlikely(...) ?unlikely?
#undef swap
#define swap(...) ?swap?
#undef SWAP
#define SWAP(...) ?SWAP?
#undef ARRAY_SIZE
#define ARRAY_SIZE(...) ?ARRAY_SIZE?
#undef COUNTOF
#define COUNTOF(...) ?COUNTOF?
#undef assert
#define assert(...) ?assert?
