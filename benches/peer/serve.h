/* The protocol of tables.c and ring.c with benches/peer/parts.py: print `ready`, then measure on request. */

#include <err.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void fail(const char *message)
{
	errx(1, "%s", message);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Prints `ready`, the setup time in seconds, and the checksum of the results. Then, for each input line `measure SECONDS`,
 * prints the rate that `measure` returns, in millions per second. Returns at the line `quit` or at the end of the input. */
static void serve(double setup_seconds, uint64_t sum, double (*measure)(double))
{
	char line[64];
	double seconds;

	printf("ready %.3f %016" PRIx64 "\n", setup_seconds, sum);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL && strcmp(line, "quit\n") != 0) {
		if (sscanf(line, "measure %lf", &seconds) != 1)
			fail("unknown request: expected `measure SECONDS` or `quit`");
		printf("rate %.3f\n", measure(seconds));
		fflush(stdout);
	}
}
