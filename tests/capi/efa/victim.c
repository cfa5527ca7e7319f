/* A process to be killed, on C's library over efa: it says its endpoint's name, takes packets, and posts no receive.
 * So it owes what is sent to it a receipt, word to send more, or word that it has been read. It ends with its standard
 * input, too. */
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
