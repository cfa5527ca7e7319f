"""Prints the options of the backend OFI with their defaults, as NIXL lists them."""

from nixl_cu12._api import nixl_agent, nixl_agent_config

agent = nixl_agent("options", nixl_agent_config(backends=[]))
print(agent.get_plugin_list(), agent.get_plugin_params("OFI"), agent.get_plugin_mem_types("OFI"))
