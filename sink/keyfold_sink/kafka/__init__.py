"""The sink's Kafka clients: consumer, admin client, their configuration and their errors.

client          the interface of the consumer
consumer        configure and open the clients
cluster         requests with the admin client
contact         tell refused logins and TLS errors from brokers that do not answer
source          whether the topic is still the one that the log continues
"""
