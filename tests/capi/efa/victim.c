/* A process to be killed, on C's library over efa: it prints its endpoint's name, polls, and posts no receive. So it
 * never sends the RECEIPT, CTS or EOR packet that its peers wait for. It also ends when its standard input ends. */
#include <fcntl.h>
#include <unistd.h>

#include "side.h"

int main(void)
{
	struct side side = side_open(FI_VERSION(1, 17), FI_MSG | FI_RMA);
	side_enable(&side);

	unsigned char name[256];
	size_t len = sizeof name;
	OK(fi_getname(&side.ep->fid, name, &len));
	for (size_t at = 0; at < len; at++)
		printf("%02x", name[at]);
	puts("");
	fflush(stdout);

	struct fi_cq_data_entry entry;
	char word;
	ANSWERS(read(0, &word, 1), 1);
	OK(fcntl(0, F_SETFL, O_NONBLOCK));
	while (read(0, &word, 1))
		ANSWERS(fi_cq_read(side.cq, &entry, 1), -FI_EAGAIN);
	return 0;
}
